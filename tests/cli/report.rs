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

/// A page that needs nothing else, with the numbers of the report; what users wrote stays text.
#[test]
fn report_as_a_page() {
    let folder = Folder::new("cli-page");
    std::fs::write(folder.path("a<b>&.toml"), SMALL).expect("a job file");
    let told = halostream(&folder, &["run", "a<b>&.toml", "--report", "r.html"]).done().out;
    let page = std::fs::read_to_string(folder.path("r.html")).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{page}");
    assert!(page.contains("a&lt;b&gt;&amp;.toml") && !page.contains("a<b>"), "{page}");
    assert!(page.contains(told.trim()) && page.contains("predicted peak"), "{page}");
    for stage in ["reader", "halo", "compute", "trim", "writer"] {
        assert!(page.contains(&format!("<tr><td>{stage}</td>")), "{stage}");
    }
    assert!(!page.contains("http") && !page.contains("<script"), "{page}");
    // Every element is closed, so that a strict reader shows it too.
    for tag in ["table", "tr", "td", "figure", "svg", "p", "pre", "div", "details"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    let again = halostream(&folder, &["run", "a<b>&.toml", "--report", "again.html"]).done().out;
    assert!(again.contains("nothing to do"), "{again}");
    assert!(std::fs::read_to_string(folder.path("again.html")).expect("a page").contains("nothing to do"));
}

#[test]
fn a_trace_holds_what_every_stage_did() {
    let folder = Folder::new("cli-trace");
    job(&folder, SMALL);
    halostream(&folder, &["run", "job.toml", "--trace", "t.json", "--report", "r.json", "--quiet"]).done();
    let read = |name: &str| serde_json::from_slice::<Value>(&std::fs::read(folder.path(name)).expect("a file")).expect("JSON");
    let (trace, report) = (read("t.json"), read("r.json"));
    let events = trace.as_array().expect("a list");
    let spans: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert!(spans.iter().all(|e| e["ts"].is_number() && e["dur"].as_f64().is_some_and(|d| d >= 0.0)), "{trace}");
    // Working time by the trace is that of the report.
    for stage in report["stages"].as_array().expect("a list") {
        let own =
            spans.iter().filter(|e| e["cat"] == stage["name"] && !e["name"].as_str().is_some_and(|n| n.starts_with("waits")));
        let sum: f64 = own.map(|e| e["dur"].as_f64().unwrap_or(0.0) / 1e6).sum();
        let busy = stage["busy_s"].as_f64().expect("a number");
        assert!((sum - busy).abs() <= 1e-6 + 0.01 * busy, "{}: {sum} and {busy}", stage["name"]);
    }
    let named = |text: &str| spans.iter().any(|e| e["name"].as_str().is_some_and(|n| n.contains(text)));
    assert!(named("block 0"), "{trace}");
    let threads: Vec<&str> = events.iter().filter(|e| e["ph"] == "M").filter_map(|e| e["args"]["name"].as_str()).collect();
    assert!(threads.iter().any(|name| name.starts_with("compute-")), "{threads:?}");
    halostream(&folder, &["run", "job.toml", "--trace", "nowhere/t.json"])
        .fails(2, "halostream: --trace nowhere/t.json: No such file or directory (os error 2)\n");
}

/// Width and height, and the pixels' bytes.
fn png(path: &std::path::Path) -> (u32, u32, Vec<u8>) {
    let decoder = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(path).expect("a picture")));
    let mut reader = decoder.read_info().expect("a header");
    let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
    let info = reader.next_frame(&mut pixels).expect("pixels");
    (info.width, info.height, pixels)
}

#[test]
fn pictures_of_outputs() {
    let folder = Folder::new("cli-look");
    let text = "[input]\npath = \"sample:slc\"\nshape = [90, 2100, 11]\nchunks = [32, 512, 11]\n[[step]]\nop = \"ks_test\"\nhalf_window = [1, 1]\n\
                [[step]]\nop = \"mean\"\ninputs = [\"ks_test.p\"]\naxis = [0, 1, 2, 3]\n\
                [outputs.test]\npath = \"ks.zarr\"\nfrom = \"ks_test\"\n[outputs.mean]\npath = \"mean.zarr\"\nfrom = \"mean\"\n";
    job(&folder, text);
    let told = halostream(&folder, &["run", "job.toml", "--quicklook", "looks/first"]).done().out;
    let lines: Vec<&str> = told.lines().skip(1).collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(told.contains("no picture of mean: [] has no two axes to show"), "{told}");
    for name in ["test.dist", "test.p"] {
        let (width, height, pixels) = png(&folder.path(&format!("looks/first/{name}.png")));
        // Every third of 2100 cells: 700 pixels; a window's cell beside the middle, where values differ.
        assert_eq!((width, height, pixels.len()), (700, 90, 700 * 90 * 2), "{name}");
        let greys: std::collections::BTreeSet<u8> = pixels.chunks(2).filter(|p| p[1] == 255).map(|p| p[0]).collect();
        assert!(greys.len() > 3, "{name}: {greys:?}");
    }
    let again = halostream(&folder, &["run", "job.toml", "--quicklook", "looks/again", "--quiet"]).done();
    assert_eq!(again.out, "");
    assert_eq!(png(&folder.path("looks/first/test.p.png")), png(&folder.path("looks/again/test.p.png")));
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
