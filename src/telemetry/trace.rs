//! `run --trace FILE.json`: what each thread did when, in the trace event format that Perfetto and chrome://tracing read.
//!
//! Spans go to the file as they come, so a trace takes no memory and one that was cut short can be read. Waits that nobody would
//! see are left out, and a long run stops tracing at [`MOST_SPANS`], which the trace says.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::engine::stage::Doing;
use crate::engine::{Observer, Span};

/// About 150 MB.
const MOST_SPANS: u64 = 1_000_000;
const SHORTEST_WAIT: Duration = Duration::from_micros(20);

pub struct Trace {
    since: Instant,
    writing: Mutex<Writing>,
}

struct Writing {
    to: BufWriter<File>,
    /// Numbers of threads by their names.
    threads: HashMap<String, usize>,
    spans: u64,
    failed: Option<io::Error>,
}

impl Trace {
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut to = BufWriter::new(File::create(path)?);
        to.write_all(b"[\n")?;
        Ok(Self { since: Instant::now(), writing: Mutex::new(Writing { to, threads: HashMap::new(), spans: 0, failed: None }) })
    }

    /// Ends the file; an error that writing met earlier is told now.
    pub fn finish(&self) -> io::Result<()> {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = writing.failed.take() {
            return Err(error);
        }
        let note = match writing.spans {
            n if n >= MOST_SPANS => format!("the trace ends after {MOST_SPANS} spans, the run went on"),
            n => format!("{n} spans"),
        };
        let at = self.since.elapsed().as_micros() as u64;
        writeln!(writing.to, "{}\n]", json!({ "name": note, "ph": "i", "s": "g", "pid": 1, "tid": 0, "ts": at }))?;
        writing.to.flush()
    }
}

impl Writing {
    fn span(&mut self, thread: &str, from: Duration, span: &Span) -> io::Result<()> {
        let next = self.threads.len() + 1;
        let tid = match self.threads.get(thread) {
            Some(tid) => *tid,
            None => {
                self.threads.insert(thread.to_owned(), next);
                writeln!(
                    self.to,
                    "{},",
                    json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": next, "args": { "name": thread } })
                )?;
                next
            }
        };
        let (name, colour) = match span.doing {
            Doing::Working => (span.unit.as_str(), "thread_state_running"),
            Doing::Blocked => ("waits for room", "thread_state_iowait"),
            Doing::Starved => ("waits for work", "thread_state_sleeping"),
        };
        let lasts = span.until.duration_since(span.since);
        let event = json!({
            "name": name, "cat": span.stage, "ph": "X", "pid": 1, "tid": tid, "cname": colour,
            "ts": from.as_nanos() as f64 / 1e3, "dur": lasts.as_nanos() as f64 / 1e3,
        });
        writeln!(self.to, "{event},")
    }
}

impl Observer for Trace {
    fn hears_spans(&self) -> bool {
        true
    }

    fn span(&self, span: &Span) {
        if span.doing != Doing::Working && span.until.duration_since(span.since) < SHORTEST_WAIT {
            return;
        }
        let thread = std::thread::current();
        let from = span.since.saturating_duration_since(self.since);
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if writing.spans >= MOST_SPANS || writing.failed.is_some() {
            return;
        }
        writing.spans += 1;
        if let Err(error) = writing.span(thread.name().unwrap_or(span.stage), from, span) {
            writing.failed = Some(error);
        }
    }
}
