//! Outputs in object stores: absent or complete whatever happens (I4), resumed, each object put once (I3).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use halostream::array::DType;
use halostream::config::CodecSpec;
use halostream::writer::{OutputLayout, Sink, zarr};

use super::common::Folder;
use super::server::{Fate, Request, Server};
use super::*;

/// A job that copies `in.zarr` beside it to a URL.
fn to(folder: &Folder, url: &str, lines: &str) {
    let text =
        format!("[input]\npath = \"in.zarr\"\n[output]\npath = \"{url}\"\n{lines}\n[engine]\nmemory = \"128MiB\"\nworkers = 2\n");
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
}

/// An input of 6 by 4 chunks, and the job that copies it into the bucket.
fn copied(name: &str) -> (Folder, Array) {
    let folder = Folder::new(name);
    let array = values(&mut Random(11), &[48, 20]);
    common::write(&folder.path("in.zarr"), &array, &[8, 5], None, CodecName::Zstd);
    std::fs::create_dir_all(bucket(&folder)).expect("a bucket");
    to(&folder, "s3://bucket/deep/out.zarr", "");
    (folder, array)
}

fn stored(folder: &Folder) -> PathBuf {
    bucket(folder).join("deep/out.zarr")
}

fn is_chunk_put(request: &Request) -> bool {
    request.method == "PUT" && request.path.contains("/c/")
}

/// Keys of files below a folder.
fn keys(folder: &Path) -> BTreeSet<String> {
    fn visit(folder: &Path, prefix: &str, keys: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => visit(&entry.path(), &format!("{name}/"), keys),
                false => drop(keys.insert(name)),
            }
        }
    }
    let mut found = BTreeSet::new();
    visit(folder, "", &mut found);
    found
}

#[test]
fn what_is_stored_is_what_a_folder_would_hold() {
    let (folder, array) = copied("stores-out");
    let server = Server::new(&served(&folder));
    for (n, lines) in
        ["", "zarr_format = 2", "chunks = [8, 5]\nshards = [16, 10]", "codec = \"none\"\nchunks = [7, 20]"].iter().enumerate()
    {
        to(&folder, "local.zarr", lines);
        halostream(&folder, &RUN, &[]).done();
        let local = folder.path("local.zarr");
        // Google's client signs what it writes, in public buckets too.
        let token = vec![gs(&server)[0].clone(), ("GOOGLE_BEARER_TOKEN", "token".to_owned())];
        for (scheme, env) in [("s3", s3(&server)), ("gs", token)] {
            let key = format!("deep/{scheme}{n}.zarr");
            to(&folder, &format!("{scheme}://bucket/{key}"), lines);
            halostream(&folder, &RUN, &borrowed(&env)).done();
            let remote = bucket(&folder).join(&key);
            assert_eq!(common::read(&remote, None), array, "{scheme}: {lines}");
            assert_eq!(keys(&remote), keys(&local), "{scheme}: {lines}");
            for key in keys(&local).iter().filter(|key| !key.contains("zarr.json") && !key.starts_with(".z")) {
                let bytes = |root: &Path| std::fs::read(root.join(key)).expect("an object");
                assert_eq!(bytes(&remote), bytes(&local), "{key}");
            }
        }
        std::fs::remove_dir_all(local).expect("an output");
    }
    // Metadata comes last.
    let puts: Vec<String> = server.log().iter().filter(|r| r.method == "PUT").map(|r| r.path.clone()).collect();
    let of: Vec<&String> = puts.iter().filter(|path| path.contains("/s30.zarr/")).collect();
    assert!(of[0].ends_with("/begun") && of[of.len() - 2].ends_with("/complete"), "{of:?}");
    assert!(of[of.len() - 1].ends_with("s30.zarr/zarr.json"), "{of:?}");
    assert_eq!(of.iter().filter(|path| path.contains("/c/")).count(), 24);
}

#[test]
fn outputs_that_are_groups() {
    let folder = Folder::new("stores-out-group");
    std::fs::create_dir_all(bucket(&folder)).expect("a bucket");
    let server = Server::new(&served(&folder));
    let job = |path: &str| {
        let text = format!(
            "[input]\npath = \"sample:slc\"\nshape = [24, 20, 6]\nchunks = [8, 10, 6]\n[[step]]\nop = \"ks_test\"\nhalf_window = [2, 2]\n[output]\npath = \"{path}\"\n"
        );
        std::fs::write(folder.path("job.toml"), text).expect("a job file");
    };
    job("local.zarr");
    halostream(&folder, &RUN, &[]).done();
    job("s3://bucket/ks.zarr");
    halostream(&folder, &RUN, &borrowed(&s3(&server))).done();
    for name in ["dist", "p"] {
        let remote = common::read(&bucket(&folder).join("ks.zarr"), Some(name));
        assert_eq!(remote, common::read(&folder.path("local.zarr"), Some(name)), "{name}");
    }
    let last = server.log().into_iter().rfind(|r| r.method == "PUT").expect("puts").path;
    assert_eq!(last, "/bucket/ks.zarr/zarr.json", "the group's own document makes it an output");
    let shown = halostream(&folder, &["inspect", "s3://bucket/ks.zarr"], &borrowed(&s3(&server))).done();
    assert!(shown.out.contains("dist  float") && shown.out.contains("p  float"), "{}", shown.out);
}

/// A group of one array with two coordinates in the bucket and beside it, in format 2 and consolidated.
fn group_of_v2(folder: &Folder) {
    for root in [bucket(folder).join("in.zarr"), folder.path("in.zarr")] {
        let array = |name: &str, shape: &[u64], names: &[&str]| {
            let layout = OutputLayout {
                shape: shape.to_vec(),
                dtype: DType::U8,
                chunks: shape.to_vec(),
                shards: None,
                codec: CodecSpec { name: CodecName::Zstd, level: None },
                zarr_format: 2,
                dimension_names: names.iter().map(|name| Some((*name).to_owned())).collect(),
                attributes: Default::default(),
                points: None,
                is_remote: false,
            };
            let values: Vec<u8> = (0..shape.iter().product::<u64>()).map(|i| i as u8).collect();
            let sink = zarr::create(&root, name, layout, false).expect("a store");
            sink.put(&vec![0; shape.len()], &values).expect("a chunk");
        };
        array("u", &[6, 4], &["y", "x"]);
        array("y", &[6], &["y"]);
        array("x", &[4], &["x"]);
        let mut metadata = serde_json::Map::new();
        for key in keys(&root).into_iter().filter(|key| key.rsplit('/').next().is_some_and(|name| name.starts_with(".z"))) {
            let document = std::fs::read(root.join(&key)).expect("a document");
            metadata.insert(key, serde_json::from_slice(&document).expect("JSON"));
        }
        let document = serde_json::json!({"zarr_consolidated_format": 1, "metadata": metadata});
        std::fs::write(root.join(".zmetadata"), document.to_string()).expect("a document");
    }
}

#[test]
fn what_is_carried_is_what_a_folder_would_hold() {
    let folder = Folder::new("stores-carried");
    std::fs::create_dir_all(bucket(&folder)).expect("a bucket");
    group_of_v2(&folder);
    let server = Server::new(&served(&folder));
    for format in [2, 3] {
        let job = |input: &str, output: &str| {
            let text = format!(
                "[input]\npath = \"{input}\"\narray = \"u\"\nselect = \":, 1:\"\n[output]\npath = \"{output}\"\nzarr_format = {format}\n"
            );
            std::fs::write(folder.path("job.toml"), text).expect("a job file");
        };
        job("in.zarr", "local.zarr");
        halostream(&folder, &RUN, &[]).done();
        let local = folder.path("local.zarr");
        for (n, (input, env)) in
            [("s3://bucket/in.zarr".to_owned(), s3(&server)), (server.url("bucket/in.zarr"), s3(&server))].into_iter().enumerate()
        {
            let name = format!("out{format}{n}.zarr");
            job(&input, &format!("s3://bucket/{name}"));
            halostream(&folder, &RUN, &borrowed(&env)).done();
            let remote = bucket(&folder).join(&name);
            assert_eq!(keys(&remote), keys(&local), "{input}");
            assert!(keys(&remote).contains(if format == 2 { "x/.zarray" } else { "x/zarr.json" }));
            for key in keys(&local) {
                let bytes = |root: &Path| std::fs::read(root.join(&key)).expect("an object");
                let says_who = !key.contains('/') && key != ".zgroup";
                assert!(says_who || bytes(&remote) == bytes(&local), "{key}");
            }
        }
        std::fs::remove_dir_all(local).expect("an output");
    }
    // Killed after the consolidated document and before the one that counts.
    let remote = bucket(&folder).join("out21.zarr");
    let said: serde_json::Value =
        serde_json::from_slice(&std::fs::read(remote.join(".zattrs")).expect("attributes")).expect("JSON");
    let mark = remote.join(format!(".halostream-{}", said["halostream"]["hash"].as_str().expect("a hash")));
    std::fs::create_dir_all(&mark).expect("a folder");
    ["begun", "complete"].iter().for_each(|name| std::fs::write(mark.join(name), "").expect("a mark"));
    std::fs::remove_file(remote.join(".zgroup")).expect("a document");
    let text = std::fs::read_to_string(folder.path("job.toml")).expect("a job file");
    let text = text.replace("zarr_format = 3", "zarr_format = 2").replace("out31.zarr", "out21.zarr");
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
    let ended = halostream(&folder, &["run", "job.toml"], &borrowed(&s3(&server))).done();
    assert!(ended.out.contains("it was complete before"), "{}", ended.out);
    assert!(remote.join(".zgroup").exists() && !mark.join("complete").exists());
}

#[test]
fn large_objects_go_in_parts() {
    let folder = Folder::new("stores-out-parts");
    std::fs::create_dir_all(bucket(&folder)).expect("a bucket");
    let server = Server::new(&served(&folder));
    let array = values(&mut Random(12), &[3000, 3000]);
    common::write(&folder.path("in.zarr"), &array, &[1000, 1000], None, CodecName::None);
    for lines in ["codec = \"none\"\nchunks = [1000, 1000]\nshards = [3000, 3000]", "codec = \"none\"\nchunks = [3000, 3000]"] {
        to(&folder, "s3://bucket/deep/out.zarr", lines);
        halostream(&folder, &RUN, &borrowed(&s3(&server))).done();
        assert_eq!(common::read(&stored(&folder), None), array);
        std::fs::remove_dir_all(stored(&folder)).expect("an output");
    }
    // 18 MB in parts of 8 MiB.
    assert_eq!(server.count(|r| r.query.contains_key("partNumber")), 6);
}

/// Starts a run that is not waited for.
fn start(folder: &Folder, env: &[(&'static str, String)]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halostream"));
    command.args(["run", "job.toml", "--quiet"]).current_dir(&folder.0).stdin(Stdio::null()).stderr(Stdio::null());
    command.envs(env.iter().map(|(name, value)| (name, value))).spawn().expect("the binary starts")
}

#[test]
fn a_killed_run_goes_on() {
    let (folder, array) = copied("stores-out-kill");
    for at in [0, 5, 14, 23] {
        let held = Server::with(&served(&folder), {
            let puts = std::sync::atomic::AtomicUsize::new(0);
            move |request| match is_chunk_put(request) && puts.fetch_add(1, std::sync::atomic::Ordering::SeqCst) >= at {
                true => Fate::Held,
                false => Fate::Served,
            }
        });
        let mut child = start(&folder, &s3(&held));
        // Until all that gets through is stored, and something is in flight.
        let is_there = || keys(&stored(&folder)).iter().filter(|key| key.starts_with("c/")).count();
        while is_there() < at || held.count(is_chunk_put) <= at {
            assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().expect("a child");
        child.wait().expect("a child");
        let env = s3(&held);
        let shown = halostream(&folder, &["inspect", "s3://bucket/deep/out.zarr"], &borrowed(&env));
        shown.fails(2, &["neither a Zarr array nor a group"]);
        drop(held);
        let before = is_there();
        assert!(before >= at);
        let server = Server::new(&served(&folder));
        halostream(&folder, &RUN, &borrowed(&s3(&server))).done();
        assert_eq!(server.count(is_chunk_put), 24 - before, "only what is missing is put");
        assert_eq!(common::read(&stored(&folder), None), array);
        assert_eq!(keys(&stored(&folder)).len(), 25, "no marks are left");
        std::fs::remove_dir_all(stored(&folder)).expect("an output");
    }
}

#[test]
fn an_interrupted_publishing_is_finished() {
    let (folder, array) = copied("stores-out-publish");
    let server = Server::with(&served(&folder), |request| match request.is_for("PUT", "out.zarr/zarr.json") {
        true => Fate::Status(403, "<Error><Code>AccessDenied</Code></Error>"),
        false => Fate::Served,
    });
    halostream(&folder, &RUN, &borrowed(&s3(&server))).fails(1, &["s3://bucket/deep/out.zarr", "403", "check credentials"]);
    assert!(!stored(&folder).join("zarr.json").exists());
    let server = Server::new(&served(&folder));
    let ended = halostream(&folder, &RUN, &borrowed(&s3(&server))).done();
    assert!(ended.out.contains("it was complete before"), "{}", ended.out);
    assert_eq!(server.count(is_chunk_put), 0);
    assert_eq!(common::read(&stored(&folder), None), array);
    assert_eq!(keys(&stored(&folder)).len(), 25);
    // Killed between the metadata and the end: marks beside an output that stands.
    let mark = stored(&folder).join(".halostream-0123456789abcdef/complete");
    std::fs::create_dir_all(mark.parent().expect("a folder")).expect("a folder");
    std::fs::write(&mark, b"").expect("a mark");
    let ended = halostream(&folder, &["clean", "s3://bucket/deep/out.zarr"], &borrowed(&s3(&server))).done();
    assert!(ended.out.contains("removed 1 objects"), "{}", ended.out);
    assert_eq!(common::read(&stored(&folder), None), array);
}

#[test]
fn what_stands_is_not_overwritten_by_accident() {
    let (folder, array) = copied("stores-out-exists");
    let server = Server::new(&served(&folder));
    let env = s3(&server);
    let run = |lines: &str| {
        to(&folder, "s3://bucket/deep/out.zarr", lines);
        halostream(&folder, &RUN, &borrowed(&env))
    };
    run("").done();
    let puts = server.count(is_chunk_put);
    assert!(run("").done().out.contains("nothing to do"));
    assert_eq!(server.count(is_chunk_put), puts);
    run("chunks = [48, 20]").fails(2, &["was made by another job"]);
    run("chunks = [48, 20]\nif_exists = \"error\"").fails(2, &["exists already"]);
    assert_eq!(keys(&stored(&folder)).len(), 25);
    run("chunks = [48, 20]\nif_exists = \"overwrite\"").done();
    assert_eq!(keys(&stored(&folder)).into_iter().collect::<Vec<_>>(), ["c/0/0", "zarr.json"], "nothing of the old one is left");
    assert_eq!(common::read(&stored(&folder), None), array);
    // Somebody's objects, no array.
    std::fs::remove_file(stored(&folder).join("zarr.json")).expect("metadata");
    run("").fails(2, &["1 objects lie there", "overwrite"]);
    assert_eq!(keys(&stored(&folder)).len(), 1);
    run("if_exists = \"overwrite\"").done();
    assert_eq!(keys(&stored(&folder)).len(), 25);
}

#[test]
fn unfinished_outputs_of_other_jobs() {
    let (folder, array) = copied("stores-out-other");
    let refusing = Server::with(&served(&folder), |request| match request.is_for("PUT", "/c/5/3") {
        true => Fate::Status(403, ""),
        false => Fate::Served,
    });
    halostream(&folder, &RUN, &borrowed(&s3(&refusing))).fails(1, &["s3://bucket/deep/out.zarr/c/5/3", "check credentials"]);
    let server = Server::new(&served(&folder));
    let env = s3(&server);
    to(&folder, "s3://bucket/deep/out.zarr", "codec = \"gzip\"");
    halostream(&folder, &RUN, &borrowed(&env)).fails(2, &["unfinished output of another job", "halostream clean"]);
    let cleaned = halostream(&folder, &["clean", "s3://bucket/deep/out.zarr"], &borrowed(&env)).done();
    assert!(cleaned.out.starts_with("removed ") && keys(&stored(&folder)).is_empty(), "{}", cleaned.out);
    assert!(
        halostream(&folder, &["clean", "s3://bucket/deep/out.zarr"], &borrowed(&env)).done().out.contains("nothing to remove")
    );
    halostream(&folder, &RUN, &borrowed(&env)).done();
    assert_eq!(common::read(&stored(&folder), None), array);
}

#[test]
fn puts_are_tried_again() {
    let (folder, array) = copied("stores-out-again");
    let server = Server::with(&served(&folder), |request| match request.earlier {
        0 | 1 if request.is_for("PUT", "/c/2/2") => Fate::Status(503, ""),
        0 if request.method == "PUT" && request.path.ends_with("zarr.json") => Fate::Status(500, ""),
        _ => Fate::Served,
    });
    halostream(&folder, &RUN, &borrowed(&s3(&server))).done();
    assert_eq!(common::read(&stored(&folder), None), array);
}

#[test]
fn nothing_is_left_when_the_input_changed() {
    let (folder, _) = copied("stores-out-changed");
    let chunk = folder.path("in.zarr/c/0/0");
    let server = Server::with(&served(&folder), move |request| {
        if request.is_for("PUT", "/c/5/3") {
            let bytes = std::fs::read(&chunk).expect("a chunk");
            std::fs::write(&chunk, bytes).expect("a chunk");
        }
        Fate::Served
    });
    halostream(&folder, &RUN, &borrowed(&s3(&server))).fails(1, &["was changed while it was being read"]);
    assert!(keys(&stored(&folder)).is_empty(), "{:?}", keys(&stored(&folder)));
}

/// Objects wait together, like reads.
#[test]
fn slow_stores_are_written_side_by_side() {
    let (folder, array) = copied("stores-out-together");
    let server = Server::with(&served(&folder), |request| match is_chunk_put(request) {
        true => Fate::Together(10),
        false => Fate::Served,
    });
    halostream(&folder, &RUN, &borrowed(&s3(&server))).done();
    assert_eq!(common::read(&stored(&folder), None), array);
    assert!(server.most_waiting() >= 10, "{} puts at once", server.most_waiting());
}

/// The service: an input of the job from one store, the output in another.
#[test]
fn the_service_reads_and_writes_stores() {
    let folder = Folder::new("stores-service");
    let base = small(&folder, "base.zarr");
    let server = Server::new(&served(&folder));
    let array = values(&mut Random(13), &[48, 20]);
    std::fs::create_dir_all(folder.path("in")).expect("a folder");
    common::write(&folder.path("in/day1.zarr"), &array, &[8, 5], None, CodecName::Zstd);
    let service = "[service]\nlisten = \"127.0.0.1:0\"\nstate = \"state\"\ntoken_file = \"token\"\n[[watch]]\nname = \"w\"\n\
                   directory = \"in\"\npattern = \"*.zarr\"\ncomplete = [\"rename\"]\njob = \"job.toml\"\n\
                   output = \"s3://bucket/days/{stem}.max.zarr\"\npoll = \"100ms\"\n";
    let job = format!(
        "[inputs.a]\npath = \"{{input}}\"\n[inputs.b]\npath = \"{}\"\n[[step]]\nop = \"expression\"\ninputs = [\"a\", \"b\"]\n\
         formula = \"maximum(a, b)\"\n[[step]]\nop = \"cast\"\ndtype = \"uint16\"\n[output]\npath = \"{{output}}\"\n",
        server.url("bucket/base.zarr")
    );
    std::fs::write(folder.path("service.toml"), service).expect("a service file");
    std::fs::write(folder.path("job.toml"), job).expect("a job file");
    halostream(&folder, &["serve", "service.toml", "--once"], &borrowed(&s3(&server))).done();
    let want: Vec<u16> = array.values::<u16>().into_iter().zip(base.values::<u16>()).map(|(a, b)| a.max(b)).collect();
    assert_eq!(common::read(&bucket(&folder).join("days/day1.max.zarr"), None).values::<u16>(), want);
    let status = halostream(&folder, &["status", "service.toml", "--json"], &[]).done();
    assert!(status.out.contains("s3://bucket/days/day1.max.zarr") || status.out.contains("\"done\""), "{}", status.out);
}
