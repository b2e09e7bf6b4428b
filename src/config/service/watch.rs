//! `[[watch]]`: a directory, what counts as an input in it, and what becomes of one.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use glob::MatchOptions;
use sha2::{Digest, Sha256};

use crate::config::fill::{self, Filling, PLACEHOLDERS};
use crate::config::output::elsewhere;
use crate::config::table::{Problem, Table, nearest};
use crate::config::{IfExists, InputPlace, JobSpec, job, units};
use crate::remote::is_url;

/// Names that only unfinished files have, beside dot files.
const TEMPORARY: [&str; 9] =
    ["*.part", "*.partial", "*.tmp", "*.temp", "*.crdownload", "*.filepart", "*.download", "*.swp", "*~"];

/// A pattern may name folders this deep; `**` goes on from there to this depth too.
pub const MAX_DEPTH: usize = 32;

/// One watched directory.
pub struct WatchSpec {
    pub name: String,
    pub line: usize,
    pub directory: PathBuf,
    pub pattern: Pattern,
    pub complete: Vec<Policy>,
    pub job: JobTemplate,
    /// Absolute, with placeholders.
    pub output: String,
    pub after: After,
    pub on_change: OnChange,
    pub retries: u32,
    pub priority: i64,
    pub ignore: Vec<glob::Pattern>,
    pub stalled_after: Duration,
    /// The directory is read at least this often.
    pub poll: Duration,
    /// Whether changes that the system tells of shorten the wait.
    pub events: bool,
    /// Inputs are told apart by a hash of their content too: touching one does not make it new.
    pub content: bool,
    /// Of the job file and of what this watch says about its outputs.
    pub config_hash: String,
}

/// Which entries are inputs, by their path below the directory.
#[derive(Clone, Debug)]
pub struct Pattern {
    pub text: String,
    glob: glob::Pattern,
    /// `None`: any number of folders down.
    pub depth: Option<usize>,
}

/// When an input is complete; all policies of a watch must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Size and time of the whole tree unchanged for so long.
    Settle(Duration),
    /// A file of this name (with placeholders) inside or beside.
    Marker(String),
    /// Whole at first sight: whoever brings it renames it into place.
    Rename,
    /// Every chunk of every array is stored.
    Zarr,
    /// Every file of a list, inside or beside, is there with its size and hash.
    Manifest(String),
}

/// What becomes of an input whose outputs stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum After {
    Keep,
    Archive(PathBuf),
    Delete,
}

/// What becomes of a processed input that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnChange {
    Reprocess,
    Ignore,
    Quarantine,
}

/// A job file with placeholders.
pub struct JobTemplate {
    pub path: PathBuf,
    pub text: String,
    /// Some output's path is not `{output}` itself: only parsing tells it.
    pub has_other_outputs: bool,
    /// Every input says `missing = "fill"`.
    pub fills_missing: bool,
}

impl JobTemplate {
    /// The job of one input.
    pub fn fill(&self, filling: &Filling) -> Result<JobSpec, Vec<Problem>> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        job::parse_filled(&self.text, folder, &[], Some(filling), &|name| std::env::var(name).ok())
    }
}

/// How patterns match: `*` stays within a folder, and hidden names need a dot in the pattern.
const MATCH: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

impl Pattern {
    pub fn new(text: &str) -> Result<Self, String> {
        let glob = glob::Pattern::new(text).map_err(|e| format!("\"{text}\" is no pattern: {}", e.msg))?;
        let is_relative = Path::new(text).components().all(|c| matches!(c, Component::Normal(_)));
        if text.is_empty() || !is_relative {
            return Err(format!("\"{text}\" has to lie below the directory: no leading /, no .."));
        }
        let parts: Vec<&str> = text.split('/').filter(|p| !p.is_empty()).collect();
        if parts.len() > MAX_DEPTH {
            return Err(format!("\"{text}\" goes deeper than {MAX_DEPTH} folders"));
        }
        let depth = (!parts.contains(&"**")).then_some(parts.len());
        Ok(Self { text: text.to_owned(), glob, depth })
    }

    pub fn matches(&self, relpath: &str) -> bool {
        self.glob.matches_with(relpath, MATCH)
    }
}

impl WatchSpec {
    /// True for names that are never inputs nor lead to one.
    pub fn ignores(&self, name: &str, relpath: &str) -> bool {
        let hits = |p: &glob::Pattern| p.matches(name) || p.matches_with(relpath, MATCH);
        name.starts_with('.') || self.ignore.iter().any(hits)
    }

    /// What the placeholders stand for.
    pub fn filling(&self, relpath: &str) -> Filling {
        let input = self.directory.join(relpath);
        let name = relpath.rsplit('/').next().unwrap_or(relpath);
        let stem = Path::new(name).file_stem().and_then(|s| s.to_str()).unwrap_or(name);
        let mut values = vec![
            ("input", input.to_string_lossy().into_owned()),
            ("name", name.to_owned()),
            ("stem", stem.to_owned()),
            ("relpath", relpath.to_owned()),
            ("watch", self.name.clone()),
        ];
        let output = Filling::new(values.clone()).text(&self.output);
        values.push(("output", output));
        Filling::new(values)
    }

    /// Where the main output of an input goes.
    pub fn output_of(&self, relpath: &str) -> PathBuf {
        job::plain(Path::new(&self.filling(relpath).text("{output}")))
    }

    pub fn settle(&self) -> Option<Duration> {
        self.complete.iter().filter_map(|p| if let Policy::Settle(t) = p { Some(*t) } else { None }).max()
    }

    /// True when an output of `other` would match this watch: found out with a made-up name.
    pub fn would_take_output_of(&self, other: &WatchSpec) -> bool {
        let made_up = made_up(&other.pattern.text);
        let output = other.output_of(&made_up);
        output.strip_prefix(&self.directory).ok().and_then(Path::to_str).is_some_and(|rel| {
            let name = rel.rsplit('/').next().unwrap_or(rel);
            self.pattern.matches(rel) && !self.ignores(name, rel)
        })
    }
}

/// A path that could match a pattern.
fn made_up(pattern: &str) -> String {
    let parts = pattern.split('/').filter(|p| !p.is_empty()).map(|part| match part {
        "**" => "x".to_owned(),
        part => {
            let mut out = String::new();
            let mut in_set = false;
            for c in part.chars() {
                match c {
                    '[' => in_set = true,
                    ']' if in_set => {
                        in_set = false;
                        out.push('x');
                    }
                    _ if in_set => {}
                    '*' | '?' => out.push('x'),
                    c => out.push(c),
                }
            }
            out
        }
    });
    parts.collect::<Vec<_>>().join("/")
}

pub fn read(mut table: Table<'_>, folder: &Path, env: &dyn Fn(&str) -> Option<String>, digest: &mut Sha256) -> Option<WatchSpec> {
    let line = table.problems.line_of(&table.span());
    let name = name(&mut table);
    let directory = required(&mut table, "directory", "\"inbox\"").map(|text| job::plain(&folder.join(text)));
    let pattern = required(&mut table, "pattern", "\"*.zarr\"")
        .and_then(|text| Pattern::new(&text).map_err(|message| table.problem("pattern", message)).ok());
    let complete = complete(&mut table);
    let output = required(&mut table, "output", "\"out/{stem}.zarr\"").and_then(|text| output(&table, folder, &text));
    let after = after(&mut table, folder);
    let on_change = match table.one_of("on_change", &["reprocess", "ignore", "quarantine"]) {
        Some("ignore") => OnChange::Ignore,
        Some("quarantine") => OnChange::Quarantine,
        _ => OnChange::Reprocess,
    };
    let retries = table.count("retries").unwrap_or(3);
    if retries > 1000 {
        table.problem("retries", format!("expected 0 to 1000, found {retries}"));
    }
    let priority = table.integer("priority").unwrap_or(0);
    let ignore = ignore(&mut table, &complete);
    let stalled_after = table.duration("stalled_after").unwrap_or(Duration::from_secs(2 * 3600));
    let poll = table.duration("poll").unwrap_or(Duration::from_secs(2));
    if poll.is_zero() {
        table.problem("poll", "has to be longer than nothing");
    }
    let events = table.bool("events").unwrap_or(true);
    let content = table.one_of("identity", &["stat", "content"]) == Some("content");
    let job_path = required(&mut table, "job", "\"job.toml\"").map(|text| job::plain(&folder.join(text)));
    let job = job_path.and_then(|path| template(&table, path, env));
    table.finish();
    let (job, output) = (job?, output?);
    digest.update(job.text.as_bytes());
    let mut own = Sha256::new_with_prefix(job.text.as_bytes());
    own.update(output.as_bytes());
    Some(WatchSpec {
        name: name?,
        line,
        directory: directory?,
        pattern: pattern?,
        complete,
        job,
        output,
        after: after?,
        on_change,
        retries: retries as u32,
        priority,
        ignore,
        stalled_after,
        poll,
        events,
        content,
        config_hash: own.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect(),
    })
}

fn required(table: &mut Table<'_>, key: &'static str, example: &str) -> Option<String> {
    let text = table.string(key);
    if text.is_none() && !table.has(key) {
        table.problem(key, format!("missing; write {key} = {example}"));
    }
    text.filter(|t| {
        let is_empty = t.is_empty();
        if is_empty {
            table.problem(key, "is empty");
        }
        !is_empty
    })
}

fn name(table: &mut Table<'_>) -> Option<String> {
    let name = required(table, "name", "\"slc\"")?;
    let is_good = name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if !is_good {
        table.problem("name", format!("\"{name}\" is no name; use at most 64 letters, digits, _ and -"));
    }
    is_good.then_some(name)
}

fn complete(table: &mut Table<'_>) -> Vec<Policy> {
    let Some(list) = table.strings("complete") else {
        if !table.has("complete") {
            let choices = "\"settle:10s\", \"marker:NAME\", \"rename\", \"zarr\", \"manifest:NAME\"";
            table.problem("complete", format!("missing, and there is no default; all that you list must hold: {choices}"));
        }
        return Vec::new();
    };
    if list.is_empty() {
        table.problem("complete", "the list is empty: nothing would say when an input is whole");
    }
    list.iter().filter_map(|text| policy(text).map_err(|message| table.problem("complete", message)).ok()).collect()
}

fn policy(text: &str) -> Result<Policy, String> {
    let named = |name: &str| {
        let is_good = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        let unknown = fill::names(name).into_iter().find(|n| !["name", "stem"].contains(n));
        match (is_good, unknown) {
            (false, _) => Err(format!("\"{text}\" names no file; write \"marker:_SUCCESS\" or \"marker:{{name}}.done\"")),
            (_, Some(unknown)) => Err(format!("\"{text}\": {{{unknown}}} means nothing here; {{name}} and {{stem}} do")),
            _ => Ok(name.to_owned()),
        }
    };
    match text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest))) {
        ("settle", Some(time)) => units::parse_duration(time).map(Policy::Settle),
        ("settle", None) => Err("\"settle\" needs a time: \"settle:10s\"".to_owned()),
        ("marker", name) => named(name.unwrap_or_default()).map(Policy::Marker),
        ("manifest", name) => named(name.unwrap_or_default()).map(Policy::Manifest),
        ("rename", None) => Ok(Policy::Rename),
        ("zarr", None) => Ok(Policy::Zarr),
        (kind, _) => {
            let known = ["settle", "marker", "rename", "zarr", "manifest"];
            let hint = nearest(kind, known).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
            Err(format!("\"{text}\" is no policy ({}){hint}", known.join(", ")))
        }
    }
}

fn output(table: &Table<'_>, folder: &Path, text: &str) -> Option<String> {
    for name in fill::names(text) {
        if !PLACEHOLDERS.contains(&name) || name == "output" || name == "input" {
            let hint = nearest(name, PLACEHOLDERS).map(|near| format!("; did you mean {{{near}}}?")).unwrap_or_default();
            table
                .problem("output", format!("{{{name}}} means nothing here; {{stem}}, {{name}}, {{relpath}}, {{watch}} do{hint}"));
            return None;
        }
    }
    if let Some(message) = elsewhere(text) {
        table.problem("output", message);
        return None;
    }
    if !["{stem}", "{name}", "{relpath}"].iter().any(|p| text.contains(p)) {
        table.problem("output", "is the same for every input; write \"out/{stem}.zarr\"");
    }
    let is_named = Path::new(text).extension().is_some_and(|e| e == "zarr" || e == "npy");
    if !is_named && !text.ends_with("{name}") && !text.ends_with("{relpath}") {
        table.problem("output", format!("\"{text}\" does not say what to write; outputs end in .zarr or .npy"));
    }
    match is_url(Path::new(text)) {
        true => Some(text.to_owned()),
        false => folder.join(text).to_str().map(str::to_owned),
    }
}

fn after(table: &mut Table<'_>, folder: &Path) -> Option<After> {
    match table.string("after").as_deref() {
        None | Some("keep") => Some(After::Keep),
        Some("delete") => Some(After::Delete),
        Some(text) => match text.strip_prefix("archive:").filter(|d| !d.is_empty()) {
            Some(to) => Some(After::Archive(job::plain(&folder.join(to)))),
            None => {
                table.problem("after", format!("\"{text}\" is none of \"keep\", \"archive:FOLDER\", \"delete\""));
                None
            }
        },
    }
}

/// The given patterns, temporary names, and markers and manifests that lie beside their inputs.
fn ignore(table: &mut Table<'_>, complete: &[Policy]) -> Vec<glob::Pattern> {
    let mut list: Vec<glob::Pattern> = TEMPORARY.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
    for policy in complete {
        if let Policy::Marker(name) | Policy::Manifest(name) = policy {
            let any = Filling::new(vec![("name", "*".to_owned()), ("stem", "*".to_owned())]);
            // The fixed parts are escaped one by one, so that only what is filled in is a star.
            let escaped = glob::Pattern::escape(name).replace("[{]", "{").replace("[}]", "}");
            list.extend(glob::Pattern::new(&any.text(&escaped)).ok().filter(|p| !p.as_str().chars().all(|c| c == '*')));
        }
    }
    for text in table.strings("ignore").unwrap_or_default() {
        match glob::Pattern::new(&text) {
            Ok(pattern) => list.push(pattern),
            Err(error) => table.problem("ignore", format!("\"{text}\" is no pattern: {}", error.msg)),
        }
    }
    list
}

/// The job file, filled with a made-up input to see that it can be parsed.
fn template(table: &Table<'_>, path: PathBuf, env: &dyn Fn(&str) -> Option<String>) -> Option<JobTemplate> {
    let text = job::read_text(&path).map_err(|message| table.problem("job", format!("{}: {message}", path.display()))).ok()?;
    let (input, output) = ("/made-up/input.zarr", "/made-up/output.zarr");
    let values = [
        ("input", input),
        ("output", output),
        ("name", "input.zarr"),
        ("stem", "input"),
        ("relpath", "input.zarr"),
        ("watch", "watch"),
    ];
    let filling = Filling::new(values.map(|(k, v)| (k, v.to_owned())).into());
    let folder = path.parent().unwrap_or(Path::new("/"));
    let spec = match job::parse_filled(&text, folder, &[], Some(&filling), env) {
        Ok(spec) => spec,
        Err(problems) => {
            for problem in problems {
                table.problem("job", format!("{}: {problem}", path.display()));
            }
            return None;
        }
    };
    let reads = |from: &InputPlace| match from {
        InputPlace::Paths(paths) => paths.iter().any(|p| p.starts_with(input)),
        InputPlace::Glob(glob) => glob.starts_with(input),
        InputPlace::Sample(_) => false,
        InputPlace::Command(command) => {
            command.program.command.iter().any(|word| word.contains(input)) || command.program.params.to_string().contains(input)
        }
    };
    if !spec.inputs.iter().any(|i| reads(&i.from)) {
        table.problem("job", format!("{}: no input reads {{input}}: what arrives would not be looked at", path.display()));
    }
    if !spec.outputs.iter().any(|o| o.path == Path::new(output)) {
        table.problem("job", format!("{}: no output has path = \"{{output}}\"", path.display()));
    }
    if spec.outputs.iter().any(|o| o.if_exists != IfExists::Resume) {
        table.problem("job", format!("{}: the service runs jobs with if_exists = \"resume\"; leave it out", path.display()));
    }
    Some(JobTemplate {
        has_other_outputs: spec.outputs.iter().any(|o| o.path != Path::new(output)),
        fills_missing: spec.inputs.iter().all(|i| i.missing == crate::config::Missing::Fill),
        path,
        text,
    })
}
