//! What HTTP gives, and what it refuses.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::Stdio;

use serde_json::Value;

use crate::kit::*;

const WATCH: &str = "complete = [\"rename\"]";

/// The text format of Prometheus, by its grammar: comments, then `name{label="value",..} number`.
fn check_metrics(text: &str) {
    let (mut helped, mut typed, mut series) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(helped.insert(rest.split(' ').next().expect("a name")), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(name.starts_with("halostream_") && typed.insert(name), "{line}");
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let bare = name.split('{').next().expect("a name");
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| bare.strip_suffix(s)).unwrap_or(bare);
            assert!(typed.contains(bare) || typed.contains(base), "{line} has no type");
            assert!(series.insert(name), "{line} stands twice");
        }
    }
    assert!(helped == typed && series.len() > 20, "{} series", series.len());
}

/// The parser of Prometheus' own client reads the text too, where a Python has it.
fn check_by_prometheus(text: &str) {
    const SCRIPT: &str = "
import sys
from prometheus_client.parser import text_string_to_metric_families
families = list(text_string_to_metric_families(sys.stdin.read()))
for family in families:
    assert family.type in ('counter', 'gauge', 'histogram') and family.documentation, family
    assert family.samples or family.type != 'gauge', family
names = {sample.name for family in families for sample in family.samples}
assert {'halostream_jobs_total', 'halostream_job_seconds_bucket', 'halostream_ready'} <= names, names
print(len(families), 'families')
";
    let python = std::env::var("HALOSTREAM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let run = |script: &str| {
        let mut command = std::process::Command::new(&python);
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        child.stdin.take()?.write_all(text.as_bytes()).ok()?;
        child.wait_with_output().ok()
    };
    if !run("import sys, prometheus_client.parser; sys.stdin.read()").is_some_and(|ended| ended.status.success()) {
        println!("skipped: {python} cannot import prometheus_client (HALOSTREAM_PYTHON names another)");
        return;
    }
    let ended = run(SCRIPT).expect("it ran before");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    println!("prometheus_client reads {}", String::from_utf8_lossy(&ended.stdout).trim());
}

#[test]
fn what_can_be_read() {
    let folder = set_up("read", "", WATCH);
    drop_input(&folder, "a.zarr", 1);
    let service = Service::ready(&folder);
    service.wait_for(&folder, "done", 1);
    wait_until("readiness", || (service.get(&folder, "/readyz").0 == 200).then_some(()));
    assert_eq!(service.get(&folder, "/healthz").0, 200);
    let (code, text) = service.get(&folder, "/metrics");
    assert_eq!(code, 200);
    check_metrics(&text);
    check_by_prometheus(&text);
    assert!(text.contains("halostream_jobs_total{outcome=\"done\",watch=\"w\"} 1"), "{text}");
    let jobs: Value = serde_json::from_str(&service.get(&folder, "/api/jobs?state=done&watch=w&limit=5").1).expect("json");
    assert_eq!((jobs["jobs"][0]["name"].as_str(), jobs["jobs"][0]["id"].as_u64()), (Some("a.zarr"), Some(1)));
    let one: Value = serde_json::from_str(&service.get(&folder, "/api/jobs/1").1).expect("json");
    assert!(one["state"] == "done" && one["outputs"][0].as_str().is_some_and(|o| o.ends_with("out/a.zarr")), "{one}");
    let config: Value = serde_json::from_str(&service.get(&folder, "/api/config").1).expect("json");
    assert_eq!(config["watches"][0]["name"], "w");
    // The page asks for what was checked here, and for nothing from elsewhere.
    let (code, page) = service.get(&folder, "/");
    assert!(code == 200 && page.contains("api/status") && page.contains("api/jobs?limit="), "{code} {page}");
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("innerHTML"), "{page}");
    let status: Value = serde_json::from_str(&service.get(&folder, "/api/status").1).expect("json");
    for key in
        ["state", "service", "version", "pid", "queue", "max_jobs", "memory_limit_bytes", "memory_reserved_bytes", "running"]
    {
        assert!(page.contains(&format!("status.{key}")) && status.get(key).is_some(), "{key}: {status}");
    }
    for path in ["/api/jobs/2", "/api/jobs/x", "/api/jobs/../../token", "/api/jobs/..%2f..%2ftoken", "/token", "/../token", "//"]
    {
        let (code, body) = service.get(&folder, path);
        assert!(code == 404 || code == 400, "{path}: {code} {body}");
    }
    for query in ["limit=0", "limit=99999999", "state=x", "before=y", "wrong=1"] {
        assert_eq!(service.get(&folder, &format!("/api/jobs?{query}")).0, 400, "{query}");
    }
    assert_eq!(service.stop(), 0);
}

#[test]
fn state_changing_calls_need_the_token() {
    let folder = set_up("token", "", WATCH);
    let mut service = Service::ready(&folder);
    let token = std::fs::read_to_string(folder.path("token")).expect("it was made");
    let post = |token: &str, path: &str, body: &str| {
        let token = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {}\r\n", token.trim()) };
        let text = format!("POST {path} HTTP/1.0\r\nHost: x\r\n{token}Content-Length: {}\r\n\r\n{body}", body.len());
        service.send(&folder, text.as_bytes()).0
    };
    for path in ["/api/requeue", "/api/reload", "/api/drain"] {
        assert_eq!(post("", path, "{}"), 401, "{path}");
        assert_eq!(post("wrong", path, "{}"), 401, "{path}");
        assert_eq!(post(&token[1..], path, "{}"), 401, "{path}");
    }
    assert_eq!(post(&token, "/api/requeue", "{\"all\": true}"), 200);
    assert_eq!(post(&token, "/api/requeue", "nonsense"), 400);
    assert_eq!(post(&token, "/api/reload", ""), 200);
    // Larger than anything anybody means.
    assert_eq!(post(&token, "/api/requeue", &format!("{{\"name\": \"{}\"}}", "x".repeat(1 << 20))), 413);
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(1 << 20));
    let (code, _) = service.send(&folder, long.as_bytes());
    assert!([0, 400, 414, 431].contains(&code), "{code}");
    assert!(service.is_running() && service.get(&folder, "/healthz").0 == 200);
    let text = service.get(&folder, "/metrics").1;
    for count in ["{code=\"401\"} 9", "{code=\"413\"} 1"] {
        assert!(text.contains(&format!("halostream_http_requests_total{count}")), "no {count} in {text}");
    }
    assert_eq!(service.log().lines().filter(|line| line.contains("a request was refused")).count(), 10);
    // The last one drains it.
    let text =
        format!("POST /api/drain HTTP/1.0\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 0\r\n\r\n", token.trim());
    assert_eq!(service.send(&folder, text.as_bytes()).0, 200);
    assert_eq!(service.end(), 0);
}

#[test]
fn other_addresses_only_with_a_token() {
    let folder = set_up("open", "", WATCH);
    let text = std::fs::read_to_string(folder.path("service.toml")).expect("a file");
    let open = text.replace("127.0.0.1:0", "0.0.0.0:0").replace("token_file = \"token\"", "");
    write_whole(&folder.path("service.toml"), open.as_bytes());
    let (code, _, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 2 && err.contains("service.listen") && err.contains("token_file"), "{err}");
    std::fs::write(folder.path("token"), "short\n").expect("a file");
    write_whole(&folder.path("service.toml"), text.as_bytes());
    let (code, _, err) = halostream(&folder, &["serve", "service.toml", "--once"]);
    assert!(code == 2 && err.contains("token"), "{err}");
}

#[test]
fn events_come_as_they_happen() {
    let folder = set_up("events", "", WATCH);
    let service = Service::ready(&folder);
    let mut stream = std::net::TcpStream::connect(service.address(&folder)).expect("it listens");
    stream.write_all(b"GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    drop_input(&folder, "a.zarr", 1);
    let mut text = String::new();
    let mut part = [0u8; 4096];
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a timeout");
    while !text.contains("event: job_done") {
        let n = stream.read(&mut part).expect("events");
        assert!(n > 0, "the stream ended: {text}");
        text += &String::from_utf8_lossy(&part[..n]);
    }
    let places: Vec<_> = ["service_started", "input_settled", "job_started", "job_done"].iter().map(|e| text.find(e)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
    assert_eq!(service.stop(), 0);
}
