//! A job file's tables as a [`JobSpec`]: reads the file, applies `--set` and the environment, and checks that the parts
//! fit together. All problems are found together; only an error of TOML's own grammar hides the others.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fill::{self, Filling};
use super::table::{MOST_PROBLEMS, Node, Problem, Problems, Table, describe, integer, nearest};
use super::{
    EngineSpec, InputPlace, InputSpec, JobSpec, OutputSpec, edit, engine, input, output, resolved, step, table_path, units,
};
use crate::remote::is_url;

/// A job file is written by hand; a larger one is something else.
const MAX_JOB_BYTES: u64 = 4 << 20;

/// The newest grammar that is read.
pub const VERSION: i64 = 1;

/// Longest piece of a line that a syntax error shows.
const SHOWN: usize = 60;

/// Reads a job file, with `--set` values and the process's environment.
pub fn read(path: &Path, sets: &[(String, String)]) -> Result<JobSpec, Vec<Problem>> {
    let problem = |message: String| vec![Problem { line: 0, key: String::new(), message }];
    let text = read_text(path).map_err(|message| problem(format!("{}: {message}", path.display())))?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    parse(&text, folder, sets, &|name| std::env::var(name).ok())
}

/// A file's text; what is too large or no text is refused, with the reason.
pub fn read_text(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|e| format!("cannot open the job file: {e}"))?;
    let mut bytes = Vec::new();
    file.take(MAX_JOB_BYTES + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot read the job file: {e}"))?;
    if bytes.len() as u64 > MAX_JOB_BYTES {
        return Err(format!("is no job file: it is larger than {}", units::format_bytes(MAX_JOB_BYTES)));
    }
    String::from_utf8(bytes).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        format!("is no job file: line {line} is not UTF-8")
    })
}

/// A job from its text. Relative paths start at `folder`; `env` looks up `${VAR}`.
pub fn parse(
    text: &str,
    folder: &Path,
    sets: &[(String, String)],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<JobSpec, Vec<Problem>> {
    parse_filled(text, folder, sets, None, env)
}

/// The same for a job of the service: placeholders such as `{input}` are filled first, and a missing chunk is an error
/// unless the job says otherwise.
pub fn parse_filled(
    text: &str,
    folder: &Path,
    sets: &[(String, String)],
    filling: Option<&Filling>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<JobSpec, Vec<Problem>> {
    let mut root = tree(text)?;
    let problems = Problems::new(text).within(folder);
    edit::set_all(root.get_mut(), sets, &problems);
    if let Some(filling) = filling {
        filling.apply(root.get_mut());
        fill::expect_chunks(root.get_mut());
    }
    let resolved = resolved::resolved(root.get_ref());
    edit::expand(root.get_mut(), env, &problems);

    let spec = tables(root.get_ref(), folder, &problems);
    if !problems.is_empty() {
        return Err(problems.take());
    }
    let (inputs, steps, outputs, engine) = spec;
    Ok(JobSpec { inputs, steps, outputs, engine, resolved, folder: folder.to_owned() })
}

/// A file's tables; the problems of TOML's own grammar otherwise.
pub(super) fn tree(text: &str) -> Result<Spanned<DeTable<'_>>, Vec<Problem>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(root);
    }
    // What recovery left out would be reported as missing: nothing else is looked at.
    let mut list: Vec<_> = errors.iter().take(MOST_PROBLEMS).map(|e| syntax(text, e)).collect();
    // One per line: the rest of a broken line is seldom wrong by itself.
    list.sort_by_key(|p| p.line);
    list.dedup_by_key(|p| p.line);
    list.extend(Problem::more(errors.len().saturating_sub(MOST_PROBLEMS)));
    Err(list)
}

fn syntax(text: &str, error: &toml::de::Error) -> Problem {
    let at = error.span().map_or(text.len(), |s| s.start.min(text.len()));
    let before = &text.as_bytes()[..at];
    let line = before.iter().filter(|b| **b == b'\n').count();
    let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
    let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
    let shown: String = text.lines().nth(line).unwrap_or_default().trim().chars().take(SHOWN).collect();
    let message = error.message().replace('\n', ", ").replace(", expected nothing", "");
    let place = if shown.is_empty() { String::new() } else { format!(" in `{shown}`") };
    Problem { line: line + 1, key: String::new(), message: format!("column {column}: not TOML: {message}{place}") }
}

type Parts = (Vec<InputSpec>, Vec<super::StepSpec>, Vec<OutputSpec>, EngineSpec);

fn tables(root: &DeTable<'_>, folder: &Path, problems: &Problems) -> Parts {
    let mut table = Table::new(root, 0..0, "", problems.clone());
    version(&mut table);
    let input_tables = places(&mut table, root, "input", "inputs");
    let output_tables = places(&mut table, root, "output", "outputs");
    let step_nodes = step_list(&mut table);
    let engine = table.table("engine").map(|t| engine::read(t, folder)).unwrap_or_default();
    table.finish();

    let input_names: Vec<String> = input_tables.iter().map(|(name, _)| (*name).to_owned()).collect();
    let step_names: Vec<Option<String>> = step_nodes.iter().map(step::name_of).collect();
    check_names(&input_tables, step_nodes, &step_names, problems);

    let inputs: Vec<_> = input_tables.into_iter().filter_map(|(name, t)| input::read(t, name, folder)).collect();
    let mut steps = Vec::new();
    for (i, node) in step_nodes.iter().enumerate() {
        let path = format!("step[{i}]");
        let DeValue::Table(body) = node.get_ref() else {
            problems.add(Some(&node.span()), path, format!("expected a table, found {}", describe(node.get_ref())));
            continue;
        };
        check_step_inputs(node, &path, &input_names, &step_names, i, problems);
        steps.extend(step::read(Table::new(body, node.span(), path, problems.clone())));
    }
    let mut outputs = Vec::new();
    for (name, mut table) in output_tables {
        if let Some(from) = table.get("from").and_then(|v| v.get_ref().as_str())
            && let Err(message) = check_reference(from, &input_names, &step_names, step_names.len())
        {
            table.problem("from", message);
        }
        outputs.extend(output::read(table, name, folder));
    }
    check_paths(&inputs, &outputs, problems);
    (inputs, steps, outputs, engine)
}

fn version(table: &mut Table<'_>) {
    let Some(node) = table.get("version") else {
        return;
    };
    match integer(node.get_ref()) {
        Some(VERSION) => {}
        Some(newer) if newer > VERSION => {
            table
                .problem("version", format!("this halostream reads version {VERSION} of the grammar; {newer} needs a newer one"));
        }
        _ => table.problem("version", format!("expected {VERSION}, found {}", describe(node.get_ref()))),
    }
}

/// The tables of `[input]` and `[inputs.NAME]` (or outputs), in the order of the file; at least one is needed.
fn places<'t>(
    table: &mut Table<'t>,
    root: &'t DeTable<'t>,
    short: &'static str,
    long: &'static str,
) -> Vec<(&'t str, Table<'t>)> {
    let has_short = table.get(short).is_some();
    let mut is_told = false;
    match table.get(long).map(|n| n.get_ref()) {
        None | Some(DeValue::Table(_)) => {}
        Some(other) => {
            table.problem(long, format!("expected tables [{long}.NAME], found {}", describe(other)));
            is_told = true;
        }
    }
    let named = resolved::named(root, short, long);
    // A misspelt table is told as an unknown key; that the right one is missing goes without saying.
    is_told |= table.keys().any(|k| k != short && k != long && nearest(k, [short, long]).is_some());
    if named.is_empty() && !is_told {
        table.problems.add(None, "", format!("the job has no {short}; add [{short}] with a path"));
    }
    let mut list = Vec::new();
    for (name, node) in named {
        let is_short = has_short && table.lookup(short).is_some_and(|n| std::ptr::eq(n, node));
        let path = if is_short { short.to_owned() } else { format!("{long}.{name}") };
        let DeValue::Table(body) = node.get_ref() else {
            let hint = if is_short { format!("; write [{short}] with path = ...") } else { String::new() };
            let found = describe(node.get_ref());
            table.problems.add(Some(&node.span()), path, format!("expected a table, found {found}{hint}"));
            continue;
        };
        if let Some(message) = bad_name(name) {
            table.problems.add(Some(&node.span()), path.as_str(), message);
        }
        if list.iter().any(|(other, _): &(&str, Table<'_>)| *other == name) {
            let message = format!("[{short}] is short for [{long}.{short}]; there can be only one of them");
            table.problems.add(Some(&node.span()), path.as_str(), message);
        }
        list.push((name, Table::new(body, node.span(), path, table.problems.clone())));
    }
    list
}

fn step_list<'t>(table: &mut Table<'t>) -> &'t [Node<'t>] {
    match table.get("step").map(|n| n.get_ref()) {
        Some(DeValue::Array(list)) => list,
        Some(DeValue::Table(_)) => {
            table.problem("step", "steps are a list; write [[step]] with two brackets");
            &[]
        }
        Some(other) => {
            table.problem("step", format!("expected tables [[step]], found {}", describe(other)));
            &[]
        }
        None => &[],
    }
}

/// Names are written behind dots in keys and references, and become names of arrays.
fn bad_name(name: &str) -> Option<String> {
    let is_good = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    (!is_good).then(|| format!("\"{name}\" is no name; use letters, digits, _ and -, a letter first"))
}

fn check_names(inputs: &[(&str, Table<'_>)], steps: &[Node<'_>], names: &[Option<String>], problems: &Problems) {
    for (i, (node, name)) in steps.iter().zip(names).enumerate() {
        let Some(name) = name else { continue };
        let key = format!("step[{i}].name");
        let add = |message: String| problems.add(Some(&node.span()), key.as_str(), message);
        let is_given = matches!(node.get_ref(), DeValue::Table(t) if t.keys().any(|k| k.get_ref() == "name"));
        if let Some(message) = bad_name(name).filter(|_| is_given) {
            add(message);
        } else if inputs.iter().any(|(input, _)| input == name) {
            add(format!("an input is called \"{name}\" too; give the step a `name` of its own"));
        } else if let Some(first) = names[..i].iter().position(|n| n.as_ref() == Some(name)) {
            add(if is_given {
                format!("step[{first}] is called \"{name}\" too; names are unique")
            } else {
                format!("step[{first}] is called \"{name}\" too; two steps of one op need a `name` each")
            });
        }
    }
}

/// Whether `from` is an input or one of the first `before` steps, with or without an output behind a dot.
fn check_reference(from: &str, inputs: &[String], steps: &[Option<String>], before: usize) -> Result<(), String> {
    let (name, output) = from.split_once('.').map_or((from, None), |(name, output)| (name, Some(output)));
    if inputs.iter().any(|n| n == name) {
        return match output {
            Some(_) => Err(format!("\"{from}\": input \"{name}\" is one array, it has no outputs to choose from")),
            None => Ok(()),
        };
    }
    match steps.iter().position(|n| n.as_deref() == Some(name)) {
        Some(at) if at < before && output == Some("") => Err(format!("\"{from}\" ends in a dot")),
        Some(at) if at < before => Ok(()),
        Some(at) if at == before => Err(format!("\"{from}\" refers to this step itself")),
        Some(at) => Err(format!("\"{from}\" refers to a later step, step[{at}]; steps use only what stands above them")),
        None => {
            let known: Vec<&str> =
                inputs.iter().map(String::as_str).chain(steps[..before].iter().flatten().map(String::as_str)).collect();
            let hint = nearest(name, known.iter().copied()).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
            Err(format!("\"{name}\" is neither an input nor a step ({}){hint}", known.join(", ")))
        }
    }
}

/// References of one step's `inputs`, found in the raw table so that they are checked even when the op is unknown.
fn check_step_inputs(
    node: &Node<'_>,
    path: &str,
    inputs: &[String],
    steps: &[Option<String>],
    index: usize,
    problems: &Problems,
) {
    let DeValue::Table(table) = node.get_ref() else {
        return;
    };
    let Some((_, list)) = table.iter().find(|(k, _)| k.get_ref() == "inputs") else {
        return;
    };
    let check = |node: &Node<'_>, path: String| {
        let from = match node.get_ref() {
            DeValue::Table(entry) => match entry.iter().find(|(k, _)| k.get_ref() == "from") {
                Some((_, from)) => from,
                None => return,
            },
            _ => node,
        };
        if let Some(text) = from.get_ref().as_str()
            && let Err(message) = check_reference(text, inputs, steps, index)
        {
            problems.add(Some(&from.span()), path, message);
        }
    };
    match list.get_ref() {
        DeValue::Array(entries) => {
            entries.iter().enumerate().for_each(|(i, entry)| check(entry, format!("{path}.inputs[{i}]")));
        }
        _ => check(list, format!("{path}.inputs")),
    }
}

/// No output may take the place of another or of what is read.
fn check_paths(inputs: &[InputSpec], outputs: &[OutputSpec], problems: &Problems) {
    let overlap = |a: &Path, b: &Path| a.starts_with(b) || b.starts_with(a);
    let add = |output: &OutputSpec, message: String| {
        let key = format!("{}.path", table_path("output", &output.name));
        problems.add_at(output.line, key, message);
    };
    for (i, output) in outputs.iter().enumerate() {
        let path = plain(&output.path);
        for other in &outputs[..i] {
            if overlap(&path, &plain(&other.path)) {
                let place = table_path("output", &other.name);
                add(output, format!("{} is the place of [{place}] too; give each output its own path", output.path.display()));
            }
        }
        for input in inputs {
            if let InputPlace::Paths(paths) = &input.from
                && let Some(read) = paths.iter().find(|p| overlap(&path, &plain(Path::new(p))))
            {
                let place = table_path("input", &input.name);
                add(output, format!("{} would be written where [{place}] is read ({read})", output.path.display()));
            }
        }
    }
}

/// The path without `.` and with `..` taken back: two spellings of one place compare equal (links are not followed).
pub fn plain(path: &Path) -> PathBuf {
    if is_url(path) {
        return path.to_path_buf();
    }
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests;
