//! `sample`: example inputs, streamed to disk by the same engine (a job without steps); `frames` writes films as TIFF files.

use std::path::PathBuf;

use super::run::{Options, run_job};
use super::{Exit, complain, frames};
use crate::config;

pub struct Wanted {
    pub name: String,
    pub out: PathBuf,
    pub shape: Option<Vec<u64>>,
    pub chunks: Option<Vec<u64>>,
    pub dtype: Option<String>,
    pub codec: Option<String>,
    pub seed: u64,
    pub memory: Option<String>,
}

pub fn sample(wanted: &Wanted, options: &Options) -> Exit {
    if frames::are_wanted(wanted) {
        return frames::write(wanted, options);
    }
    let text = job_text(wanted);
    let folder = std::env::current_dir().unwrap_or_default();
    match config::job::parse(&text, &folder, &[], &|_| None) {
        Ok(job) => run_job(&job, &PathBuf::from("sample"), options),
        Err(problems) => {
            // The job has lines and keys that the user never wrote, and chunks twice.
            let mut told: Vec<String> = problems.iter().map(|p| format!("sample: {}: {}", argument(&p.key), p.message)).collect();
            told.dedup();
            told.iter().for_each(complain);
            Exit::Usage
        }
    }
}

/// What on the command line became a key of the job.
fn argument(key: &str) -> &str {
    match key {
        "input.path" => "NAME",
        "output.path" => "OUT",
        "engine.memory" => "--memory",
        _ => match key.rsplit('.').next() {
            Some("shape") => "--shape",
            Some("chunks") => "--chunks",
            Some("dtype") => "--dtype",
            Some("codec") => "--codec",
            Some("seed") => "--seed",
            _ => key,
        },
    }
}

fn job_text(wanted: &Wanted) -> String {
    let quoted = |text: &str| toml::Value::String(text.replace("${", "$${")).to_string();
    let list = |values: &[u64]| format!("{values:?}");
    let mut text = format!("[input]\npath = {}\nseed = {}\n", quoted(&format!("sample:{}", wanted.name)), wanted.seed);
    if let Some(shape) = &wanted.shape {
        text += &format!("shape = {}\n", list(shape));
    }
    if let Some(chunks) = &wanted.chunks {
        text += &format!("chunks = {}\n", list(chunks));
    }
    if let Some(dtype) = &wanted.dtype {
        text += &format!("dtype = {}\n", quoted(dtype));
    }
    text += &format!("[output]\npath = {}\n", quoted(&wanted.out.to_string_lossy()));
    if let Some(chunks) = &wanted.chunks {
        text += &format!("chunks = {}\n", list(chunks));
    }
    if let Some(codec) = &wanted.codec {
        text += &format!("codec = {}\n", quoted(codec));
    }
    if let Some(memory) = &wanted.memory {
        text += &format!("[engine]\nmemory = {}\n", quoted(memory));
    }
    text
}
