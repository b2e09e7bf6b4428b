//! A service file: where inputs arrive, when they are complete, which job runs over each.
//!
//! Reading it reads the job files too, and fills them once with a made-up input, so that a service that starts has jobs
//! that can be parsed. All problems are found together.

mod watch;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use toml::de::{DeTable, DeValue};

use super::table::{Problem, Problems, Table, describe};
use super::{edit, job};
pub use watch::{After, JobTemplate, OnChange, Pattern, Policy, WatchSpec};

const DEFAULT_PORT: u16 = 8787;
const MAX_JOBS: u64 = 256;
const MAX_WATCHES: usize = 256;

/// A service file that is well formed, with the jobs it names. All paths are absolute.
pub struct ServiceSpec {
    pub path: PathBuf,
    /// `None`: no HTTP.
    pub listen: Option<SocketAddr>,
    pub state: PathBuf,
    pub quarantine: PathBuf,
    pub quarantine_move: bool,
    pub token_file: Option<PathBuf>,
    pub max_jobs: usize,
    /// Bytes of chunks of all jobs together; `None`: half of the memory available.
    pub memory: Option<u64>,
    pub devices: Option<Vec<String>>,
    pub grace: Duration,
    pub min_free: u64,
    pub ledger_keep: Duration,
    pub on_done: Option<Vec<String>>,
    pub on_failed: Option<Vec<String>>,
    pub watches: Vec<Arc<WatchSpec>>,
    pub samples: Vec<SampleArrival>,
    /// The service file and the job files, as they were read.
    pub files: Vec<PathBuf>,
    /// Of all these files' bytes: another hash is another configuration.
    pub hash: String,
}

/// `[[sample]]`: the service writes example inputs itself, one after the other, for trying things out.
#[derive(Clone, Debug)]
pub struct SampleArrival {
    /// `slc`, `volume`, `genotypes`, `seismic`, `tiff`
    pub name: String,
    /// Absolute, with `{n}` for the number.
    pub path: String,
    pub shape: Option<Vec<u64>>,
    pub count: u64,
    pub every: Duration,
}

/// True when a file has the tables of a service and not those of a job.
pub fn is_service(path: &Path) -> bool {
    let text = job::read_text(path).unwrap_or_default();
    let has = |key: &str| job::tree(&text).is_ok_and(|root| root.get_ref().keys().any(|k| k.get_ref() == key));
    has("service") || has("watch")
}

/// Reads a service file and its jobs, with the process's environment.
pub fn read(path: &Path) -> Result<ServiceSpec, Vec<Problem>> {
    let place =
        |message: String| vec![Problem { line: 0, key: String::new(), message: format!("{}: {message}", path.display()) }];
    let path = std::path::absolute(path).map_err(|e| place(e.to_string()))?;
    let text = job::read_text(&path).map_err(place)?;
    let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
    let folder_text = folder.to_str().ok_or_else(|| place("its folder's name is not UTF-8".to_owned()))?;
    parse(&text, &path, folder_text, &|name| std::env::var(name).ok())
}

fn parse(text: &str, path: &Path, folder: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<ServiceSpec, Vec<Problem>> {
    let mut root = job::tree(text)?;
    let problems = Problems::new(text);
    edit::expand(root.get_mut(), env, &problems);
    let mut digest = Sha256::new_with_prefix(text.as_bytes());
    let spec = tables(root.get_ref(), path, Path::new(folder), env, &problems, &mut digest);
    match (spec, problems.is_empty()) {
        (Some(mut spec), true) => {
            spec.hash = digest.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect();
            Ok(spec)
        }
        _ => Err(problems.take()),
    }
}

fn tables(
    root: &DeTable<'_>,
    path: &Path,
    folder: &Path,
    env: &dyn Fn(&str) -> Option<String>,
    problems: &Problems,
    digest: &mut Sha256,
) -> Option<ServiceSpec> {
    let mut table = Table::new(root, 0..0, "", problems.clone());
    if let Some(version) = table.count("version")
        && version != 1
    {
        table.problem("version", format!("this halostream reads version 1 of the grammar, not {version}"));
    }
    let service = table.table("service");
    if service.is_none() && !table.has("service") {
        problems.add(None, "", "the file has no [service]; add one with state = \"state/\"");
    }
    let watches = list(&mut table, "watch");
    let samples = list(&mut table, "sample");
    let is_told = table.keys().any(|k| super::table::nearest(k, ["watch", "service"]).is_some_and(|near| near != k));
    if watches.is_empty() && !table.has("watch") && !is_told {
        problems.add(None, "", "the file has no [[watch]]; add one with directory, pattern, complete, job and output");
    }
    if watches.len() > MAX_WATCHES {
        table.problem("watch", format!("{} watches are more than {MAX_WATCHES}", watches.len()));
    }
    table.finish();
    let mut spec = service_table(service?, path, folder);
    for table in watches.into_iter().take(MAX_WATCHES) {
        if let Some(watch) = watch::read(table, folder, env, digest) {
            spec.files.push(watch.job.path.clone());
            spec.watches.push(Arc::new(watch));
        }
    }
    spec.samples = samples.into_iter().filter_map(|table| sample(table, folder)).collect();
    check_watches(&spec, problems);
    spec.files.sort();
    spec.files.dedup();
    Some(spec)
}

/// The tables of `[[key]]`.
fn list<'t>(table: &mut Table<'t>, key: &'static str) -> Vec<Table<'t>> {
    match table.get(key).map(|n| n.get_ref()) {
        None => Vec::new(),
        Some(DeValue::Array(entries)) => {
            let read = |(i, node): (usize, &'t super::table::Node<'t>)| match node.get_ref() {
                DeValue::Table(body) => Some(Table::new(body, node.span(), format!("{key}[{i}]"), table.problems.clone())),
                other => {
                    let message = format!("expected a table, found {}", describe(other));
                    table.problems.add(Some(&node.span()), format!("{key}[{i}]"), message);
                    None
                }
            };
            entries.iter().enumerate().filter_map(read).collect()
        }
        Some(DeValue::Table(_)) => {
            table.problem(key, format!("there may be several; write [[{key}]] with two brackets"));
            Vec::new()
        }
        Some(other) => {
            table.problem(key, format!("expected tables [[{key}]], found {}", describe(other)));
            Vec::new()
        }
    }
}

fn service_table(mut table: Table<'_>, path: &Path, folder: &Path) -> ServiceSpec {
    let place = |text: Option<String>, default: &str| job::plain(&folder.join(text.as_deref().unwrap_or(default)));
    let listen = listen(&mut table);
    let token_file = table.string("token_file").map(|text| folder.join(text));
    if let Some(address) = listen
        && !address.ip().is_loopback()
        && token_file.is_none()
    {
        let message = format!("{address} can be reached by others; say token_file = \"token\", or listen on 127.0.0.1");
        table.problem("listen", message);
    }
    if !table.has("state") {
        table.problem("state", "missing; write state = \"state/\": a folder for the ledger");
    }
    let max_jobs = table.count("max_jobs").unwrap_or(1);
    if !(1..=MAX_JOBS).contains(&max_jobs) {
        table.problem("max_jobs", format!("expected 1 to {MAX_JOBS}, found {max_jobs}"));
    }
    let (on_done, on_failed) = (command(&mut table, "on_done"), command(&mut table, "on_failed"));
    let spec = ServiceSpec {
        path: path.to_owned(),
        listen,
        state: place(table.string("state"), "state"),
        quarantine: place(table.string("quarantine"), "quarantine"),
        quarantine_move: table.bool("quarantine_move").unwrap_or(false),
        token_file,
        max_jobs: max_jobs as usize,
        memory: table.bytes("memory"),
        devices: super::engine::devices(&mut table),
        grace: table.duration("grace").unwrap_or(Duration::from_secs(60)),
        min_free: table.bytes("min_free").unwrap_or(0),
        ledger_keep: table.duration("ledger_keep").unwrap_or(Duration::from_secs(90 * 86_400)),
        on_done,
        on_failed,
        watches: Vec::new(),
        samples: Vec::new(),
        files: vec![path.to_owned()],
        hash: String::new(),
    };
    table.finish();
    spec
}

fn listen(table: &mut Table<'_>) -> Option<SocketAddr> {
    let default = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT);
    let text = match table.string("listen") {
        Some(text) => text,
        None => return Some(default),
    };
    if text == "none" {
        return None;
    }
    let numeric = text.strip_prefix("localhost:").map_or_else(|| text.clone(), |port| format!("127.0.0.1:{port}"));
    numeric.parse().map_or_else(
        |_| {
            table.problem("listen", format!("\"{text}\" is no address; write \"127.0.0.1:8787\", or \"none\" for no HTTP"));
            Some(default)
        },
        Some,
    )
}

fn command(table: &mut Table<'_>, key: &'static str) -> Option<Vec<String>> {
    let list = table.strings(key)?;
    if list.first().is_none_or(String::is_empty) {
        table.problem(key, "the command is empty; write [\"program\", \"argument\"]");
    }
    Some(list)
}

fn sample(mut table: Table<'_>, folder: &Path) -> Option<SampleArrival> {
    let name = table.one_of("name", &["slc", "volume", "genotypes", "seismic", "tiff"]).map(str::to_owned);
    if !table.has("name") {
        table.problem("name", "missing; one of slc, volume, genotypes, seismic, tiff");
    }
    let path = table.string("path");
    match &path {
        None if !table.has("path") => table.problem("path", "missing; write path = \"inbox/scene-{n}.zarr\""),
        Some(path) if !path.contains("{n}") => table.problem("path", "has no {n}: every sample needs a name of its own"),
        _ => {}
    }
    let arrival = SampleArrival {
        name: name.unwrap_or_default(),
        path: folder.join(path.as_deref().unwrap_or_default()).to_str().unwrap_or_default().to_owned(),
        shape: super::input::lengths(&mut table, "shape"),
        count: table.count("count").unwrap_or(1),
        every: table.duration("every").unwrap_or(Duration::from_secs(1)),
    };
    table.finish();
    path.map(|_| arrival)
}

/// What one watch alone can't know.
fn check_watches(spec: &ServiceSpec, problems: &Problems) {
    let mut names = BTreeSet::new();
    for watch in &spec.watches {
        if !names.insert(&watch.name) {
            problems.add_at(
                watch.line,
                "watch.name",
                format!("another watch is called \"{}\" too; names are unique", watch.name),
            );
        }
        // What arrives by itself would be made into more of itself for ever.
        if let Some(loops) = spec.watches.iter().find(|w| w.name == watch.name && w.would_take_output_of(watch)) {
            let message = format!("an output would be an input of \"{}\" again; write outputs to another folder", loops.name);
            problems.add_at(watch.line, "watch.output", message);
        }
        for (what, place) in [("state", &spec.state), ("quarantine", &spec.quarantine)] {
            if watch.directory.starts_with(place) {
                problems.add_at(
                    watch.line,
                    "watch.directory",
                    format!("lies in the service's {what} folder {}", place.display()),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
