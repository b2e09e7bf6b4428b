//! What stores do wrong: what may pass is tried again and counted, the rest is told with its cause; nothing hostile costs
//! memory (I5, I10).

use super::common::Folder;
use super::server::{Fate, Request, Server};
use super::*;

/// A small array behind these faults, and the job that copies it.
fn behind(name: &str, faults: impl Fn(&Request) -> Fate + Send + Sync + 'static) -> (Folder, Server, Array) {
    let folder = Folder::new(name);
    let array = small(&folder, "a.zarr");
    let server = Server::with(&served(&folder), faults);
    copy_job(&folder, &server.url("bucket/a.zarr"), "");
    (folder, server, array)
}

#[test]
fn what_passes_is_tried_again_and_counted() {
    let (folder, server, array) = behind("stores-again", |request| match request.earlier {
        0 | 1 if request.is_for("GET", "/c/1/2") => Fate::Status(503, "<Error><Code>SlowDown</Code></Error>"),
        0 if request.is_for("GET", "/c/3/0") => Fate::Status(429, ""),
        0 if request.is_for("GET", "/c/0/3") => Fate::Cut(5),
        0 if request.is_for("GET", "/zarr.json") => Fate::Cut(0),
        _ => Fate::Served,
    });
    halostream(&folder, &RUN, &[]).done();
    assert_eq!(output(&folder), array);
    let report = report(&folder);
    assert_eq!(report["store_requests_again"], 5);
    // The last one looks whether the input is still what it was, when the run is over.
    assert_eq!(report["store_requests"], server.log().len() - 1);
    // The rest of an answer that broke off is asked for, not all of it.
    let rest = server.log().into_iter().filter(|r| r.is_for("GET", "/c/0/3")).nth(1).expect("a second request");
    assert!(rest.range().is_some_and(|range| range.starts_with("bytes=5-")), "{:?}", rest.range());
}

#[test]
fn what_does_not_pass_ends_the_job_with_its_cause() {
    let (folder, server, _) = behind("stores-never", |request| match request.is_for("GET", "/c/1/2") {
        true => Fate::Status(503, "<Error><Code>SlowDown</Code></Error>"),
        false => Fate::Served,
    });
    let ended = halostream(&folder, &RUN, &[]);
    ended.fails(1, &["bucket/a.zarr/c/1/2", "503", "SlowDown", "9 attempts"]);
    assert_eq!(server.count(|r| r.is_for("GET", "/c/1/2")), 9);
    assert!(!folder.path("out.zarr").exists());

    let (folder, _server, _) = behind("stores-cut", |request| match request.is_for("GET", "/c/1/2") {
        true => Fate::Cut(3),
        false => Fate::Served,
    });
    halostream(&folder, &RUN, &[]).fails(1, &["bucket/a.zarr/c/1/2", "broke off", "5 attempts"]);
}

#[test]
fn denied_and_missing_chunks() {
    let denied = |request: &Request| match request.is_for("GET", "/c/1/2") {
        true => Fate::Status(403, "<Error><Code>AccessDenied</Code><Message>secret\u{1b}[2J</Message></Error>"),
        false => Fate::Served,
    };
    let (folder, server, _) = behind("stores-denied", denied);
    let ended = halostream(&folder, &RUN, &[]);
    ended.fails(1, &["bucket/a.zarr/c/1/2", "403", "AccessDenied"]);
    assert!(!ended.err.contains("secret") && !ended.err.contains('\u{1b}'), "{}", ended.err);
    assert_eq!(server.count(|r| r.is_for("GET", "/c/1/2")), 1, "what is denied is not asked for again");
    copy_job(&folder, "s3://bucket/a.zarr", "");
    let ended = halostream(&folder, &RUN, &borrowed(&s3(&server)));
    ended.fails(1, &["s3://bucket/a.zarr/c/1/2", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SKIP_SIGNATURE"]);

    let (folder, server, array) = behind("stores-missing", |request| match request.is_for("GET", "/c/5/3") {
        true => Fate::Status(404, ""),
        false => Fate::Served,
    });
    let ended = halostream(&folder, &RUN, &[]).done();
    assert!(ended.out.contains("1 missing chunk read as the fill value"), "{}", ended.out);
    let (found, want) = (output(&folder).values::<u16>(), array.values::<u16>());
    assert!((0..48 * 20).all(|at| found[at] == if at / 20 >= 40 && at % 20 >= 15 { 0 } else { want[at] }));
    copy_job(&folder, &server.url("bucket/a.zarr"), "missing = \"error\"");
    std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    halostream(&folder, &RUN, &[]).fails(1, &["bucket/a.zarr/c/5/3", "the chunk is missing"]);
}

#[test]
fn inputs_that_are_not_there() {
    let folder = Folder::new("stores-absent");
    small(&folder, "a.zarr");
    let server = Server::new(&served(&folder));
    copy_job(&folder, &server.url("bucket/b.zarr"), "");
    halostream(&folder, &RUN, &[]).fails(2, &["bucket/b.zarr", "neither a Zarr array nor a group"]);
    copy_job(&folder, "s3://bucket/b.zarr", "");
    halostream(&folder, &RUN, &borrowed(&s3(&server))).fails(2, &["s3://bucket/b.zarr", "neither a Zarr array nor a group"]);
    // Nobody listens there any more.
    let url = server.url("bucket/a.zarr");
    drop(server);
    copy_job(&folder, &url, "");
    halostream(&folder, &RUN, &[]).fails(2, &["bucket/a.zarr", "no connection"]);
}

/// A bucket whose objects are open to all, and the list of them to nobody: S3 then says 403 of what is not there.
#[test]
fn buckets_that_may_not_be_listed() {
    let folder = Folder::new("stores-unlisted");
    let array = small(&folder, "a.zarr");
    let root = served(&folder);
    let there = root.clone();
    let server = Server::with(&root, move |request| {
        let is_there = there.join(request.path.trim_start_matches('/')).is_file();
        if is_there { Fate::Served } else { Fate::Status(403, "<Error><Code>AccessDenied</Code></Error>") }
    });
    copy_job(&folder, "s3://bucket/a.zarr", "");
    halostream(&folder, &RUN, &borrowed(&s3(&server))).done();
    assert_eq!(output(&folder), array);
    copy_job(&folder, "s3://bucket/b.zarr", "");
    halostream(&folder, &RUN, &borrowed(&s3(&server))).fails(2, &["s3://bucket/b.zarr", "403", "check credentials"]);
}

#[test]
fn hostile_answers_are_refused_at_the_chunk_s_size() {
    for (length, says) in [(None, "Content-Length"), (Some(1 << 60), "the chunk is too long")] {
        let (folder, server, _) = behind("stores-endless", move |request| match request.is_for("GET", "/c/1/2") {
            true => Fate::Endless(length),
            false => Fate::Served,
        });
        halostream(&folder, &RUN, &[]).fails(1, &["bucket/a.zarr/c/1/2", says]);
        assert!(server.sent() < 64 << 20, "{} bytes were taken", server.sent());
    }
    let (folder, server, _) = behind("stores-endless-document", |request| match request.path.ends_with("zarr.json") {
        true => Fate::Endless(Some(1 << 60)),
        false => Fate::Served,
    });
    halostream(&folder, &RUN, &[]).fails(2, &["zarr.json", "at most 16777216 are expected"]);
    assert!(server.sent() < 64 << 20);
    let (folder, server, _) = behind("stores-endless-refusal", |request| match request.is_for("GET", "/c/1/2") {
        true => Fate::Status(400, ""),
        _ if request.query.contains_key("list-type") => Fate::Endless(Some(1 << 60)),
        _ => Fate::Served,
    });
    halostream(&folder, &RUN, &[]).fails(1, &["the server answers 400"]);
    copy_job(&folder, "s3://bucket/a.zarr", "");
    halostream(&folder, &RUN, &borrowed(&s3(&server))).fails(2, &["too long"]);
    assert!(server.sent() < 64 << 20, "{} bytes were taken", server.sent());
}

#[test]
fn servers_without_ranges() {
    let (folder, _server, array) = behind("stores-rangeless", |_| Fate::WithoutRanges);
    halostream(&folder, &RUN, &[]).done();
    assert_eq!(output(&folder), array, "whole chunks need none");
    std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    common::write(&bucket(&folder).join("a.zarr"), &array, &[8, 5], Some(vec![48, 20]), CodecName::None);
    halostream(&folder, &RUN, &[]).fails(1, &["bucket/a.zarr/c/0/0", "range"]);
}

#[test]
fn redirects_stay_in_their_scheme() {
    let folder = Folder::new("stores-redirect");
    let array = small(&folder, "a.zarr");
    let target = Server::new(&served(&folder));
    let to = target.address.clone();
    let server = Server::with(&served(&folder), move |request| Fate::Redirect(format!("http://{to}{}", request.path)));
    copy_job(&folder, &server.url("bucket/a.zarr"), "");
    halostream(&folder, &RUN, &[]).done();
    assert_eq!(output(&folder), array);
    // What was signed for one server is for no other.
    copy_job(&folder, "s3://bucket/a.zarr", "");
    let before = target.log().len();
    halostream(&folder, &RUN, &borrowed(&s3(&server))).fails(2, &["302", "AWS_REGION"]);
    assert_eq!(target.log().len(), before);
    let server = Server::with(&served(&folder), |request| Fate::Redirect(format!("https://127.0.0.1:1{}", request.path)));
    copy_job(&folder, &server.url("bucket/a.zarr"), "");
    halostream(&folder, &RUN, &[]).fails(2, &["a redirect leads to another scheme"]);
}
