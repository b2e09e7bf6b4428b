//! What is read is what is stored, whatever the store, the layout and the grid; credentials show nowhere.

use super::common::{Folder, Random, write};
use super::server::{Fate, Server};
use super::*;

/// I1: the same array from any store, of any layout.
#[test]
fn arrays_are_read_from_any_store() {
    let folder = Folder::new("stores-inputs");
    let server = Server::new(&served(&folder));
    let mut r = Random(1);
    for round in 0..6 {
        let shape: Vec<u64> = (0..r.range(1, 3)).map(|_| r.range(1, 40)).collect();
        let chunks: Vec<u64> = shape.iter().map(|n| r.range(n.div_ceil(4), *n)).collect();
        let shards = (round % 2 == 1).then(|| chunks.iter().map(|c| c * r.range(1, 3)).collect());
        let codec = [CodecName::None, CodecName::Zstd, CodecName::BloscLz4][round % 3];
        let array = values(&mut r, &shape);
        write(&bucket(&folder).join(format!("deep/{round}.zarr")), &array, &chunks, shards, codec);
        let key = format!("bucket/deep/{round}.zarr");
        for (url, env) in
            [(server.url(&key), Vec::new()), (format!("s3://{key}"), s3(&server)), (format!("gs://{key}"), gs(&server))]
        {
            copy_job(&folder, &url, "");
            halostream(&folder, &RUN, &borrowed(&env)).done();
            assert_eq!(output(&folder), array, "{url}: {shape:?} in {chunks:?}");
            std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
        }
    }
}

#[test]
fn parts_are_read_by_ranges() {
    let folder = Folder::new("stores-ranges");
    let server = Server::new(&served(&folder));
    let mut r = Random(2);
    let array = values(&mut r, &[64, 64]);
    write(&bucket(&folder).join("plain.zarr"), &array, &[64, 64], None, CodecName::None);
    copy_job(&folder, &server.url("bucket/plain.zarr"), "select = \"10:20\"");
    halostream(&folder, &RUN, &[]).done();
    assert_eq!(output(&folder).values::<u16>(), array.values::<u16>()[640..1280]);
    let ranges: Vec<_> = server.log().into_iter().filter(is_chunk).map(|request| request.range().map(str::to_owned)).collect();
    assert_eq!(ranges, [Some("bytes=1280-2559".to_owned())]);
    assert_eq!(report(&folder)["bytes_read"], 1280);
}

#[test]
fn a_shard_s_index_is_read_once_and_its_chunks_are_of_one_version() {
    let folder = Folder::new("stores-shards");
    let server = Server::new(&served(&folder));
    let array = values(&mut Random(3), &[32, 32]);
    write(&bucket(&folder).join("s.zarr"), &array, &[8, 8], Some(vec![32, 16]), CodecName::Zstd);
    copy_job(&folder, &server.url("bucket/s.zarr"), "");
    halostream(&folder, &RUN, &[]).done();
    assert_eq!(output(&folder), array);
    let requests: Vec<_> = server.log().into_iter().filter(is_chunk).collect();
    let is_index = |range: &str| range.starts_with("bytes=-");
    assert_eq!(requests.iter().filter(|r| r.range().is_some_and(is_index)).count(), 2);
    let chunks: Vec<_> = requests.iter().filter(|r| !r.range().is_some_and(is_index)).collect();
    assert_eq!(chunks.len(), 16);
    assert!(chunks.iter().all(|r| r.range().is_some() && r.headers.contains_key("if-match")));
}

/// Requests wait together: their number is counted, not their time.
#[test]
fn slow_stores_are_read_ahead() {
    for (codec, shards) in [(CodecName::Zstd, None), (CodecName::None, Some(vec![64, 8]))] {
        let folder = Folder::new("stores-ahead");
        let server = Server::with(&served(&folder), |request| match is_chunk(request) {
            true => Fate::Together(12),
            false => Fate::Served,
        });
        let array = values(&mut Random(4), &[64, 64]);
        write(&bucket(&folder).join("a.zarr"), &array, &[8, 8], shards, codec);
        copy_job(&folder, &server.url("bucket/a.zarr"), "");
        halostream(&folder, &RUN, &[]).done();
        assert_eq!(output(&folder), array);
        assert!(server.most_waiting() >= 12, "{} requests at once", server.most_waiting());
    }
}

#[test]
fn requests_are_signed_and_secrets_show_nowhere() {
    let folder = Folder::new("stores-secrets");
    let server = Server::with(&served(&folder), |request| match request.headers.get("authorization") {
        Some(signature) if signature.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/") => Fate::Served,
        _ => Fate::Status(403, "<Error><Code>AccessDenied</Code></Error>"),
    });
    let array = small(&folder, "a.zarr");
    let mut env = s3(&server);
    env.push(("AWS_SESSION_TOKEN", "FwoGZXIvYXdzEXAMPLETOKEN".to_owned()));
    copy_job(&folder, "s3://bucket/a.zarr", "");
    let ended = halostream(&folder, &["--log-format", "json", "run", "job.toml", "--report", "report.json"], &borrowed(&env));
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert_eq!(output(&folder), array);
    assert!(server.count(is_chunk) > 0);
    let shown = texts(&folder.path("out.zarr")) + &ended.out + &ended.err + &report(&folder).to_string();
    for secret in [KEY, SECRET, "EXAMPLETOKEN"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
    // Nor when something fails.
    let other: Vec<_> = env.iter().map(|(k, v)| (*k, if *k == "AWS_ACCESS_KEY_ID" { "OTHERKEY" } else { v.as_str() })).collect();
    std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    let denied = halostream(&folder, &RUN, &other);
    denied.fails(2, &["s3://bucket/a.zarr", "403", "AccessDenied", "check credentials: AWS_ACCESS_KEY_ID"]);
    assert!(!denied.err.contains(SECRET) && !denied.err.contains("OTHERKEY"), "{}", denied.err);
    // A public bucket.
    let public = Server::new(&served(&folder));
    let env = [("AWS_ENDPOINT_URL_S3", format!("http://{}", public.address)), ("AWS_ALLOW_HTTP", "1".to_owned())];
    let skip = [env[0].clone(), env[1].clone(), ("AWS_SKIP_SIGNATURE", "true".to_owned())];
    halostream(&folder, &RUN, &borrowed(&skip)).done();
    assert_eq!(public.count(|request| request.headers.contains_key("authorization")), 0);
}

#[test]
fn an_endpoint_without_https_is_asked_for() {
    let folder = Folder::new("stores-https");
    let server = Server::new(&served(&folder));
    small(&folder, "a.zarr");
    copy_job(&folder, "s3://bucket/a.zarr", "");
    let env: Vec<_> = s3(&server).into_iter().filter(|(name, _)| *name != "AWS_ALLOW_HTTP").collect();
    halostream(&folder, &RUN, &borrowed(&env)).fails(2, &["AWS_ENDPOINT_URL is an endpoint without https", "AWS_ALLOW_HTTP"]);
    assert!(server.log().is_empty());
}

/// An input whose objects change while they are read gives no output (I5), where the store can tell.
#[test]
fn changed_objects_are_noticed() {
    for is_listed in [true, false] {
        let folder = Folder::new("stores-changed");
        small(&folder, "a.zarr");
        let chunk = bucket(&folder).join("a.zarr/c/0/0");
        let document = bucket(&folder).join("a.zarr/zarr.json");
        let server = Server::with(&served(&folder), move |request| {
            if is_chunk(request) && request.path.ends_with("c/5/3") {
                // The same bytes at another time are another version to a listing; a server shows it by its documents alone.
                let path = if is_listed { &chunk } else { &document };
                let mut bytes = std::fs::read(path).expect("a file");
                if !is_listed {
                    bytes.push(b'\n');
                }
                std::fs::write(path, bytes).expect("a file");
            }
            Fate::Served
        });
        let (url, env) = match is_listed {
            true => ("s3://bucket/a.zarr".to_owned(), s3(&server)),
            false => (server.url("bucket/a.zarr"), Vec::new()),
        };
        copy_job(&folder, &url, "");
        halostream(&folder, &RUN, &borrowed(&env)).fails(1, &["was changed while it was being read"]);
        assert!(!folder.path("out.zarr").exists());
    }
}

/// Arrays of several stores are one array, and steps see nothing of it.
#[test]
fn stores_are_mixed() {
    let folder = Folder::new("stores-mixed");
    let server = Server::new(&served(&folder));
    let array = small(&folder, "a.zarr");
    let local = values(&mut Random(9), &[48, 20]);
    write(&folder.path("local.zarr"), &local, &[6, 20], None, CodecName::Gzip);
    let text = format!(
        "[input]\npath = [\"{}\", \"s3://bucket/a.zarr\", \"local.zarr\"]\nstack = 0\n[[step]]\nop = \"max\"\naxis = 0\n[output]\npath = \"out.zarr\"\n",
        server.url("bucket/a.zarr")
    );
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
    halostream(&folder, &RUN, &borrowed(&s3(&server))).done();
    let want: Vec<u16> = array.values::<u16>().into_iter().zip(local.values::<u16>()).map(|(a, b)| a.max(b)).collect();
    assert_eq!(output(&folder).values::<u16>(), want);
}
