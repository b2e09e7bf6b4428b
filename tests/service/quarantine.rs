//! One bad input hurts nobody else (I6): it is given up with its reason, and can be tried again once it is repaired.

use std::fs;

use halostream::service::record::State;
use serde_json::Value;

use crate::kit::*;

#[test]
fn one_bad_among_many() {
    let count = size("HALOSTREAM_INPUTS", 30);
    let folder = set_up("bad", "max_jobs = 2\nquarantine = \"q\"", "complete = [\"settle:300ms\"]\non_change = \"ignore\"");
    for seed in 0..count {
        drop_input(&folder, &format!("n{seed}.zarr"), seed);
    }
    let chunk = folder.path("in/n7.zarr/c/1/0");
    let whole = fs::read(&chunk).expect("a chunk");
    fs::write(&chunk, &whole[..whole.len() / 2]).expect("torn");
    let service = Service::ready(&folder);
    service.wait_for(&folder, "done", count - 1);
    service.wait_for(&folder, "quarantined", 1);
    // Bad input is not tried again by itself.
    assert_eq!(service.events("job_retried"), 0);
    let note = wait_until("the quarantine record", || {
        let entry = fs::read_dir(folder.path("q")).ok()?.flatten().find(|e| e.path().extension().is_some_and(|e| e == "json"))?;
        serde_json::from_str::<Value>(&fs::read_to_string(entry.path()).ok()?).ok()
    });
    let reason = note["reason"].as_str().expect("a reason");
    assert!(reason.contains("n7.zarr") && reason.contains("c/1/0"), "names the chunk: {reason}");
    println!("{count} inputs, 1 bad: {} outputs, 1 quarantined with {reason:?}", count - 1);
    assert!(folder.path("in/n7.zarr").exists() && !folder.path("out/n7.zarr").exists());

    // Repaired, and requeued by hand.
    fs::write(&chunk, &whole).expect("whole");
    let (code, out, err) = halostream(&folder, &["requeue", "service.toml", "n7.zarr"]);
    assert_eq!((code, out.as_str()), (0, "requeued n7.zarr\n"), "{err}");
    service.wait_for(&folder, "done", count);
    let (code, _, err) = halostream(&folder, &["requeue", "service.toml", "nobody.zarr"]);
    assert!(code == 1 && err.contains("no input called"), "{err}");
    assert_eq!(service.stop(), 0);
    for seed in 0..count {
        assert_output(&folder, &format!("n{seed}"), seed);
    }
    assert_eq!(fs::read_dir(folder.path("q")).expect("a folder").count(), 0, "its record is gone");
}

/// A missing chunk is an error here, unless the job says otherwise.
#[test]
fn missing_chunks() {
    let folder = set_up("missing", "", "complete = [\"settle:200ms\"]");
    drop_input(&folder, "a.zarr", 1);
    fs::remove_file(folder.path("in/a.zarr/c/2/1")).expect("a chunk");
    let (code, out, _) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 1 && out.contains("1 quarantined"), "{out}");
    let reason = record(&folder, "a.zarr").reason.expect("a reason");
    assert!(reason.contains("c/2/1") && reason.contains("missing"), "{reason}");
    // With another job it is what it is: requeued without a service, it runs at the next start.
    fs::write(folder.path("job.toml"), COPY.replace("\n[output]", "\nmissing = \"fill\"\n[output]")).expect("a job");
    let (code, out, err) = halostream(&folder, &["requeue", "service.toml", "--changed"]);
    assert_eq!((code, out.as_str()), (0, "requeued a.zarr\n"), "{err}");
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 0 && out.starts_with("done 1 in"), "{out}{err}");
    let record = record(&folder, "a.zarr");
    assert_eq!((record.state, record.numbers.expect("numbers").filled_chunks), (State::Done, 1));
}

/// Two inputs with one output name: the second is refused before it runs.
#[test]
fn collisions() {
    let folder = set_up("collide", "", "complete = [\"rename\"]");
    let text = fs::read_to_string(folder.path("service.toml")).expect("a file");
    write_whole(&folder.path("service.toml"), text.replace("\"*.zarr\"", "\"*/*.zarr\"").as_bytes());
    for (seed, name) in ["x/a.zarr", "y/a.zarr", "y/b.zarr"].iter().enumerate() {
        fs::create_dir_all(folder.path("in").join(name).parent().expect("a folder")).expect("a folder");
        drop_input(&folder, name, seed as u64);
    }
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 1 && out.starts_with("done 2 in") && out.contains("1 quarantined"), "{out}{err}");
    let refused = records(&folder).into_iter().find(|r| r.state == State::Quarantined).expect("one");
    let reason = refused.reason.expect("a reason");
    assert!(reason.contains("a.zarr") && reason.contains("another input") && refused.attempts == 0, "{reason}");
}

/// A job whose smallest need is above the limit of all jobs together is refused with the number.
#[test]
fn what_never_fits() {
    let folder = set_up("memory", "memory = \"1KiB\"", "complete = [\"rename\"]");
    drop_input(&folder, "a.zarr", 1);
    let (code, ..) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert_eq!(code, 1);
    let reason = record(&folder, "a.zarr").reason.expect("a reason");
    assert!(reason.contains("bytes)") && reason.contains("raise service.memory"), "{reason}");
}

/// What follows a job: the input goes where it should, and commands hear of it.
#[test]
fn after_and_hooks() {
    let hooks = "on_done = [\"sh\", \"-c\", \"cat >> done.txt\"]\non_failed = [\"sh\", \"-c\", \"cat >> failed.txt\"]\nquarantine = \"q\"\nquarantine_move = true";
    let folder = set_up("after", hooks, "complete = [\"rename\"]\nafter = \"archive:archive\"");
    drop_input(&folder, "a.zarr", 1);
    drop_input(&folder, "b.zarr", 2);
    fs::write(folder.path("in/b.zarr/zarr.json"), "{}").expect("broken");
    let (code, out, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert_eq!(code, 1, "{out}{err}");
    let left = |name: &str| fs::read_dir(folder.path(name)).map_or(0, |d| d.count());
    assert_eq!((left("in"), left("archive"), left("q")), (0, 1, 2));
    let told =
        |name: &str| serde_json::from_str::<Value>(&fs::read_to_string(folder.path(name)).expect("told")).expect("one job");
    assert_eq!((told("done.txt")["name"].as_str(), told("failed.txt")["name"].as_str()), (Some("a.zarr"), Some("b.zarr")));
    assert!(folder.path("archive/a.zarr/zarr.json").exists());
    assert_output(&folder, "a", 1);
    // A quarantined input that was moved comes back to be tried again.
    let (code, out, err) = halostream(&folder, &["requeue", "service.toml", "--all"]);
    assert_eq!((code, out.as_str()), (0, "requeued b.zarr\n"), "{err}");
    assert!(folder.path("in/b.zarr").exists() && left("q") == 0);
}
