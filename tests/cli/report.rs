//! What a run says while it runs and when it is done: result line, report, log.

use serde_json::Value;

use crate::common::Folder;
use crate::{SMALL, command, finish, halostream, job};

#[test]
fn quiet_says_nothing_but_errors() {
    let folder = Folder::new("cli-quiet");
    job(&folder, SMALL);
    let ended = halostream(&folder, &["run", "job.toml", "--quiet"]).done();
    assert_eq!(ended.out, "");
    let ended = halostream(&folder, &["run", "job.toml", "--quiet", "--set", "input.seed=3"]);
    assert!(ended.code == 2 && ended.err.contains("made by another job"), "{}", ended.err);
}

#[test]
fn report_has_every_key() {
    let folder = Folder::new("cli-report");
    job(&folder, SMALL);
    halostream(&folder, &["run", "job.toml", "--report", "r.json", "--set", "engine.memory=16MiB"]).done();
    let report: Value = serde_json::from_slice(&std::fs::read(folder.path("r.json")).expect("a report")).expect("JSON");
    let counts = "bytes_read bytes_written source_chunks source_chunk_reads peak_rss_bytes memory_limit_bytes predicted_peak_bytes \
                  baseline_rss_bytes blocks_total blocks_computed blocks_resumed blocks_in_flight_max";
    for key in counts.split_whitespace() {
        assert!(report[key].is_u64(), "{key} in {report}");
    }
    assert!(report["wall_s"].as_f64().is_some_and(|s| s > 0.0) && report["bottleneck"].is_string(), "{report}");
    let n = |key: &str| report[key].as_u64().unwrap_or(0);
    assert_eq!((n("source_chunks"), n("source_chunk_reads"), n("memory_limit_bytes")), (12, 12, 16 << 20));
    assert!(n("blocks_computed") == n("blocks_total") && n("predicted_peak_bytes") <= 16 << 20, "{report}");
    assert!(n("peak_rss_bytes") >= n("baseline_rss_bytes") && n("baseline_rss_bytes") > 0, "{report}");
    let stages = report["stages"].as_array().expect("a list");
    let names: Vec<&str> = stages.iter().filter_map(|s| s["name"].as_str()).collect();
    assert_eq!(names, ["reader", "halo", "compute", "trim", "writer"]);
    assert!(names.iter().any(|n| report["bottleneck"] == *n), "{report}");
    for stage in stages {
        assert!(["busy_s", "starved_s", "blocked_s"].iter().all(|k| stage[k].as_f64().is_some_and(|s| s >= 0.0)), "{stage}");
        assert!(["chunks", "bytes_in", "bytes_out"].iter().all(|k| stage[k].is_u64()), "{stage}");
    }
    let volume = 8 * 40 * 30;
    assert_eq!((&stages[2]["bytes_in"], &stages[2]["bytes_out"]), (&(volume * 4).into(), &(volume * 8).into()));
    assert_eq!(stages[4]["bytes_out"], report["bytes_written"]);
}

/// A report that cannot be written is told before the work, not after.
#[test]
fn report_without_a_folder() {
    let folder = Folder::new("cli-no-report");
    job(&folder, SMALL);
    halostream(&folder, &["run", "job.toml", "--report", "nowhere/r.json"])
        .fails(2, "halostream: --report nowhere/r.json: there is no folder nowhere\n");
    assert!(!folder.path("out.zarr").exists());
}

#[test]
fn json_log_is_json_throughout() {
    let folder = Folder::new("cli-log");
    job(&folder, SMALL);
    let args = ["run", "job.toml", "--log-format", "json"];
    let ended = finish(&folder, command(&folder, &args).env("HALOSTREAM_LOG", "info"));
    let lines: Vec<Value> = ended.err.lines().map(|l| serde_json::from_str(l).expect("a JSON line")).collect();
    let find = |message: &str| lines.iter().find(|l| l["fields"]["message"] == message).expect("the event");
    assert_eq!((&find("job started")["level"], &find("job started")["fields"]["blocks"]), (&"INFO".into(), &8.into()));
    assert!(find("job done")["fields"]["bytes_written"].is_u64(), "{}", ended.err);
    assert!(lines.iter().all(|l| l["level"].is_string()), "{}", ended.err);

    let again = [&args[..], &["--set", "input.seed=3"]].concat();
    let ended = finish(&folder, command(&folder, &again).env("HALOSTREAM_LOG", "off"));
    let line: Value = serde_json::from_str(ended.err.trim()).expect("one JSON line");
    assert_eq!((ended.code, &line["level"]), (2, &"ERROR".into()));
    let message = line["fields"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("job.toml: out.zarr: was made by another job"), "{message}");
}

#[test]
fn human_log() {
    let folder = Folder::new("cli-human");
    job(&folder, SMALL);
    let ended = finish(&folder, command(&folder, &["run", "job.toml"]).env("HALOSTREAM_LOG", "info"));
    assert!(ended.err.contains("job started") && ended.err.contains("job done"), "{}", ended.err);
    assert!(!ended.err.contains('\u{1b}'), "no colours without a terminal: {}", ended.err);
}
