//! `[[sample]]`: example inputs that the service writes itself, one after the other, so that a service can be tried out
//! without data. Each is a job without steps, run by the same engine; it appears under its name whole.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::config::job;
use crate::config::service::SampleArrival;
use crate::engine::Silent;
use crate::engine::execute::{ExecuteError, execute};
use crate::plan::Plan;
use crate::plan::machine::Machine;

/// A sample is streamed like anything else: this is plenty.
const MEMORY: &str = "256MiB";

/// Writes all of them; ends early when `stop` is set.
pub fn write_all(samples: &[SampleArrival], stop: &Arc<AtomicBool>) -> Result<(), String> {
    for sample in samples {
        for n in 0..sample.count {
            if n > 0 {
                wait(sample.every, stop);
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            write(sample, n, stop)?;
        }
    }
    Ok(())
}

fn wait(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20).min(time));
    }
}

fn write(sample: &SampleArrival, n: u64, stop: &Arc<AtomicBool>) -> Result<(), String> {
    let path = sample.path.replace("{n}", &n.to_string());
    let quoted = |text: &str| toml::Value::String(text.replace("${", "$${")).to_string();
    let mut text = format!("[input]\npath = {}\nseed = {n}\n", quoted(&format!("sample:{}", sample.name)));
    if let Some(shape) = &sample.shape {
        text += &format!("shape = {shape:?}\n");
    }
    text += &format!("[output]\npath = {}\n[engine]\nmemory = \"{MEMORY}\"\n", quoted(&path));
    let wrong = |e: String| format!("{path}: {e}");
    let lines = |list: Vec<String>| list.join("; ");
    let job = job::parse(&text, Path::new("/"), &[], &|_| None)
        .map_err(|p| wrong(lines(p.iter().map(ToString::to_string).collect())))?;
    let plan = Plan::new(&job, &Machine::detect()).map_err(|e| wrong(lines(e.iter().map(ToString::to_string).collect())))?;
    match execute(&Arc::new(plan), true, Arc::new(Silent), stop.clone()) {
        Ok(_) | Err(ExecuteError::Stopped { .. }) => Ok(()),
        Err(error) => Err(wrong(error.to_string())),
    }
}
