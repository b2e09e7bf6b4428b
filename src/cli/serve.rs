//! `serve`, `status`, `requeue`: the service, and what one asks it or its ledger.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

use super::{Exit, complain, complain_all, say};
use crate::config::service::{self, ServiceSpec};
use crate::config::units::{format_bytes, format_duration};
use crate::service::client::{self, ClientError};
use crate::service::commands::{Which, requeue_offline};
use crate::service::ledger::Ledger;
use crate::service::manager::Mode;
use crate::service::{self as served, ServeError, Served, token, view};

/// Jobs listed by `status`, newest first.
const LISTED: usize = 20;
/// What a service that does not answer has to be gone.
const ENDING: Duration = Duration::from_millis(300);

fn read(path: &Path) -> Result<ServiceSpec, Exit> {
    service::read(path).map_err(|problems| {
        complain_all(path, &problems);
        Exit::Usage
    })
}

pub fn serve(path: &Path, mode: Mode) -> Exit {
    let spec = match read(path) {
        Ok(spec) => spec,
        Err(exit) => return exit,
    };
    let since = std::time::Instant::now();
    match served::serve(spec, mode) {
        Ok(served) => ended(&served, mode, since.elapsed()),
        Err(error) => {
            complain(format!("{}: {error}", path.display()));
            match error {
                ServeError::Start(_) | ServeError::Metrics(_) => Exit::Failed,
                _ => Exit::Usage,
            }
        }
    }
}

fn ended(served: &Served, mode: Mode, took: Duration) -> Exit {
    let tally = served.tally;
    if mode != Mode::Forever || served.draining.is_some() {
        let part = |n: u64, what: &str| if n == 0 { String::new() } else { format!(", {n} {what}") };
        say(format!(
            "done {} in {}{}{}{}{}{}",
            tally.done,
            format_duration(took),
            part(tally.quarantined, "quarantined"),
            part(tally.cut, "stopped with progress kept"),
            part(served.waiting, "left waiting"),
            part(served.incomplete, "left incomplete"),
            part(served.lost, "directories could not be read"),
        ));
    }
    match served.draining {
        Some(draining) if tally.cut > 0 && draining.signal == SIGINT => Exit::Interrupted,
        Some(_) if tally.cut > 0 => Exit::Terminated,
        Some(_) => Exit::Done,
        None if tally.quarantined + tally.failures + served.waiting + served.lost > 0 => Exit::Failed,
        None => Exit::Done,
    }
}

/// Asks the running service; `None` when none runs.
fn ask(spec: &ServiceSpec, path: &str, body: Option<&Value>) -> Result<Option<Value>, String> {
    let holder = served::holder_of(spec).map_err(|e| format!("{}: {e}", spec.state.display()))?;
    let Some(holder) = holder else { return Ok(None) };
    let Some(address) = holder.address else {
        return Err(format!("process {} runs this service, and does not listen (listen = \"none\")", holder.pid));
    };
    let token = match &spec.token_file {
        Some(file) => token::read(file)?,
        None => None,
    };
    match client::ask(address, path, body, token.as_deref()) {
        Ok(value) => Ok(Some(value)),
        Err(ClientError::Refused { message, .. }) => Err(message),
        Err(error) => {
            // It may have ended while it was asked.
            std::thread::sleep(ENDING);
            if matches!(served::holder_of(spec), Ok(None)) { Ok(None) } else { Err(error.to_string()) }
        }
    }
}

/// The ledger of a service that does not run; `None` when it never ran.
fn ledger(spec: &ServiceSpec) -> Result<Option<Ledger>, String> {
    let path = served::ledger_path(spec);
    if !path.exists() {
        return Ok(None);
    }
    Ledger::open(&path).map(Some).map_err(|e| e.to_string())
}

pub fn status(path: &Path, as_json: bool) -> Exit {
    let spec = match read(path) {
        Ok(spec) => spec,
        Err(exit) => return exit,
    };
    match gather(&spec) {
        Ok(status) if as_json => say(status),
        Ok(status) => say(table(&status)),
        Err(error) => {
            complain(format!("{}: {error}", path.display()));
            return Exit::Failed;
        }
    }
    Exit::Done
}

fn gather(spec: &ServiceSpec) -> Result<Value, String> {
    let mut status = match ask(spec, "/api/status", None)? {
        Some(mut status) => {
            let listed = ask(spec, &format!("/api/jobs?limit={LISTED}"), None)?.unwrap_or_default();
            status["jobs"] = listed["jobs"].clone();
            status
        }
        None => {
            let ledger = ledger(spec)?;
            let mut status = view::offline(spec, ledger.as_ref()).map_err(|e| e.to_string())?;
            let newest = match &ledger {
                Some(ledger) => ledger.newest(u64::MAX, LISTED, |_| true).map_err(|e| e.to_string())?,
                None => Vec::new(),
            };
            status["jobs"] = view::listing(&newest, LISTED)["jobs"].clone();
            status
        }
    };
    status["listed"] = json!(LISTED);
    Ok(status)
}

/// A name on one line, whatever is in it.
fn shown(value: &Value) -> String {
    let text = value.as_str().unwrap_or("-");
    if text.chars().any(char::is_control) { format!("{text:?}") } else { text.to_owned() }
}

fn table(status: &Value) -> String {
    let mut text = format!("{}  {}", shown(&status["service"]), shown(&status["state"]));
    if let Some(error) = status["config_error"].as_str() {
        text += &format!("\nthe configuration on disk is refused, the old one is in use: {error}");
    }
    if let Some(free) = status["waiting_for_disk"]["free_bytes"].as_u64() {
        let place = shown(&status["waiting_for_disk"]["place"]);
        text += &format!("\nnothing starts: {place} has {} free", format_bytes(free));
    }
    let header = ["watch", "seen", "settled", "running", "done", "failed", "quarantined", "stalled"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for watch in status["watches"].as_array().into_iter().flatten() {
        let mut row = vec![shown(&watch["name"])];
        row.extend(header[1..7].iter().map(|state| watch["inputs"][*state].to_string()));
        row.push(watch["stalled"].as_u64().map_or("-".to_owned(), |n| n.to_string()));
        rows.push(row);
    }
    text += &format!("\n\n{}", columns(&rows));
    for watch in status["watches"].as_array().into_iter().flatten().filter(|w| w["up"] == json!(false)) {
        text += &format!("\n{} can't be read: {}", shown(&watch["directory"]), shown(&watch["error"]));
    }
    let mut rows = vec![["id", "watch", "name", "state", "tries", "what"].map(str::to_owned).to_vec()];
    for job in status["jobs"].as_array().into_iter().flatten() {
        let running = status["running"].as_array().into_iter().flatten().find(|r| r["id"] == job["id"]);
        let what = match (running, job["reason"].as_str(), job["wall_s"].as_f64()) {
            (Some(r), ..) => format!("block {} of {}", r["blocks_done"], r["blocks_total"]),
            (None, Some(_), _) => shown(&job["reason"]),
            (None, None, Some(s)) => format!("{s:.2} s"),
            _ => String::new(),
        };
        let cells = [
            job["id"].to_string(),
            shown(&job["watch"]),
            shown(&job["name"]),
            shown(&job["state"]),
            job["attempts"].to_string(),
            what,
        ];
        rows.push(cells.to_vec());
    }
    if rows.len() > 1 {
        text += &format!("\n\n{}", columns(&rows));
    }
    text
}

/// Left-aligned columns, the last as long as it is.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(c, text)| format!("{text:<width$}", width = widths[c]));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

pub fn requeue(path: &Path, which: &Which) -> Exit {
    let spec = match read(path) {
        Ok(spec) => spec,
        Err(exit) => return exit,
    };
    let body = match which {
        Which::Named(name) => json!({ "name": name }),
        Which::All => json!({ "all": true }),
        Which::Changed => json!({ "changed": true }),
    };
    let answer = ask(&spec, "/api/requeue", Some(&body)).and_then(|answer| match answer {
        Some(answer) => Ok(answer),
        None => match ledger(&spec)? {
            Some(ledger) => requeue_offline(&spec, &ledger, which).map_err(|e| e.to_string()),
            None => Err("this service has never run: there is no ledger".to_owned()),
        },
    });
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            complain(format!("{}: {error}", path.display()));
            return Exit::Failed;
        }
    };
    let list = |key: &str| answer[key].as_array().cloned().unwrap_or_default();
    for refused in list("refused") {
        complain(format!("not requeued: {}", shown(&refused)));
    }
    if let Some(error) = answer["error"].as_str() {
        complain(error);
        return Exit::Failed;
    }
    let requeued = list("requeued");
    requeued.iter().for_each(|name| say(format!("requeued {}", shown(name))));
    if requeued.is_empty() {
        say("nothing to requeue");
    }
    if list("refused").is_empty() { Exit::Done } else { Exit::Failed }
}
