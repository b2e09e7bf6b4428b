//! `[input]` / `[inputs.NAME]`: where an array comes from, and which part of it.

use std::path::Path;

use toml::de::DeValue;

use super::table::{OneOrMany, Table, describe, nearest};
use super::{CommandSpec, InputPlace, InputSpec, Join, Missing, RawSpec, SampleSpec, keep, not_available, resolve_path, select};
use crate::array::{DType, element_count};
use crate::files::natural;
use crate::operators::external;
use crate::remote::is_url;
use crate::remote::place::Place;

/// What `sample:NAME` can be.
const SAMPLES: [&str; 5] = ["slc", "volume", "genotypes", "seismic", "tiff"];

/// Keys of a sample; those of them that a raw file has too.
const SAMPLE_KEYS: [&str; 4] = ["shape", "dtype", "chunks", "seed"];
const RAW_KEYS: [&str; 2] = ["shape", "dtype"];

/// Reads the table of one input; `None` when its place is not clear (problems are in the table's list).
pub fn read(mut table: Table<'_>, name: &str, folder: &Path) -> Option<InputSpec> {
    let line = table.problems.line_of(&table.span());
    let is_raw = table.one_of("format", &["raw"]).is_some();
    let from = place(&mut table, is_raw, folder);
    let raw = raw(&mut table, is_raw);
    let is_sample = matches!(from, Some(InputPlace::Sample(_)));
    if let (true, Some(InputPlace::Paths(paths))) = (is_raw, &from)
        && let Some(url) = paths.iter().find(|path| is_url(Path::new(path)))
    {
        table.problem("format", not_available(&format!("\"{url}\": raw files from URLs are")));
    }

    let array = table.string("array");
    if let Some(array) = &array {
        if is_sample {
            table.problem("array", "a sample is one array");
        } else if array.split('/').any(|part| matches!(part, "" | "." | "..")) {
            table.problem("array", format!("\"{array}\" is no array inside a group; write \"a\" or \"a/b\""));
        }
    }
    let select = table.string("select").and_then(|text| match select::parse(&text) {
        Ok(list) => Some(list),
        Err(message) => {
            table.problem("select", message);
            None
        }
    });
    let join = join(&mut table);
    if is_sample && join.is_some() {
        table.problem(if table.has("stack") { "stack" } else { "concat" }, "a sample is one array; there is nothing to join");
    }
    if let (Some(InputPlace::Paths(paths)), false) = (&from, table.has("stack") || table.has("concat"))
        && paths.len() > 1
    {
        table.problem("path", format!("{} paths need stack = 0 or concat = 0 to become one array", paths.len()));
    }
    let missing = match table.one_of("missing", &["fill", "error"]) {
        Some("error") => Missing::Error,
        _ => Missing::Fill,
    };
    let keep = keep::read(&mut table, folder);
    let decode_cf = table.bool("decode_cf") == Some(true);
    if is_sample && decode_cf {
        table.problem("decode_cf", "a sample has no attributes to follow");
    }
    table.finish();
    if is_raw && raw.is_none() {
        return None;
    }
    Some(InputSpec { name: name.to_owned(), line, from: from?, raw, array, select, join, keep, missing, decode_cf })
}

fn place(table: &mut Table<'_>, is_raw: bool, folder: &Path) -> Option<InputPlace> {
    if table.has("command") {
        return command(table).map(InputPlace::Command);
    }
    let Some(node) = table.get("path") else {
        let message = "missing; write path = \"stack.zarr\", a list of paths, or \"sample:slc\"";
        table.problem("path", message);
        SAMPLE_KEYS.iter().for_each(|key| table.allow(key));
        return None;
    };
    if let Some(kind) = node.get_ref().as_str().and_then(|text| text.strip_prefix("sample:")) {
        return sample(table, kind).map(InputPlace::Sample);
    }
    for key in SAMPLE_KEYS {
        let is_allowed = is_raw && RAW_KEYS.contains(&key);
        table.allow(key);
        if table.has(key) && !is_allowed {
            let raw = if RAW_KEYS.contains(&key) { " and raw files (format = \"raw\")" } else { "" };
            table.problem(key, format!("only samples (path = \"sample:slc\"){raw} have it; stored arrays say so themselves"));
        }
    }
    match node.get_ref() {
        DeValue::String(text) => {
            let path = file(table, "", text, folder)?;
            let is_glob = text.contains(['*', '?', '[']) && !is_url(Path::new(text.as_ref()));
            Some(if is_glob { InputPlace::Glob(glob_in(folder, text)) } else { InputPlace::Paths(vec![path]) })
        }
        DeValue::Array(list) => {
            if list.is_empty() {
                table.problem("path", "the list is empty");
                return None;
            }
            let paths = list.iter().enumerate().map(|(i, entry)| match entry.get_ref() {
                DeValue::String(text) => file(table, &format!("[{i}]"), text, folder),
                other => {
                    let message = format!("expected a path, found {}", describe(other));
                    table.problems.add(Some(&entry.span()), format!("{}[{i}]", table.key("path")), message);
                    None
                }
            });
            let paths: Vec<_> = paths.collect();
            paths.into_iter().collect::<Option<_>>().map(InputPlace::Paths)
        }
        other => {
            table.problem("path", format!("expected a path or a list of paths, found {}", describe(other)));
            None
        }
    }
}

/// A path of the list, or the only one; `entry` is `[2]` or nothing.
fn file(table: &Table<'_>, entry: &str, text: &str, folder: &Path) -> Option<String> {
    let message = match unusable(text) {
        Some(message) => message,
        None if is_url(Path::new(text)) => return Some(text.to_owned()),
        None => match resolve_path(folder, text).to_str() {
            Some(path) => return Some(path.to_owned()),
            None => format!("the job's folder {} is not UTF-8", folder.display()),
        },
    };
    let message = if entry.is_empty() { message } else { format!("entry {entry}: {message}") };
    table.problem("path", message);
    None
}

fn unusable(path: &str) -> Option<String> {
    if path.is_empty() {
        return Some("the path is empty".to_owned());
    }
    if path.starts_with("sample:") {
        return Some(format!("\"{path}\" cannot be one of several paths"));
    }
    remote(path)
}

/// What is wrong with a place that is not on this machine.
fn remote(path: &str) -> Option<String> {
    let (scheme, _) = path.split_once("://")?;
    if !is_url(Path::new(path)) {
        return Some(format!("\"{path}\": unknown scheme {scheme}://; write a path, or a URL of s3, gs, http or https"));
    }
    let place = match Place::parse(path) {
        Ok(place) => place,
        // Not quoted: it may hold a password.
        Err(reason) => return Some(format!("the {scheme}:// URL {reason}")),
    };
    if path.contains(['*', '[']) {
        return Some(format!("\"{path}\": patterns stand for files; list the URLs"));
    }
    let suffix = Path::new(&place.key).extension().and_then(|s| s.to_str()).unwrap_or_default().to_ascii_lowercase();
    let is_other = ["npy", "bed", "tif", "tiff"].contains(&suffix.as_str());
    is_other.then(|| not_available(&format!("\"{path}\": .{suffix} files from URLs are")))
}

/// An array that a child process makes.
fn command(table: &mut Table<'_>) -> Option<CommandSpec> {
    let program = external::program(table);
    for key in ["path", "format", "offset", "seed", "array", "stack", "concat", "decode_cf", "missing"] {
        table.allow(key);
        if table.has(key) {
            table.problem(key, "an input from a command has none; what the program needs goes into `params`");
        }
    }
    for (key, example) in
        [("shape", "shape = [50, 1104, 1104]"), ("dtype", "dtype = \"float32\""), ("chunks", "chunks = [1, 256, 256]")]
    {
        if !table.has(key) {
            table.problem(key, format!("missing; a command does not say so itself: write {example}"));
        }
    }
    let (shape, chunks, dtype) = (lengths(table, "shape"), lengths(table, "chunks"), table.dtype("dtype"));
    if let (Some(shape), Some(chunks)) = (&shape, &chunks)
        && shape.len() != chunks.len()
    {
        table.problem("chunks", format!("has {} entries, shape has {}", chunks.len(), shape.len()));
        return None;
    }
    Some(CommandSpec { program: program?, shape: shape?, chunks: chunks?, dtype: dtype? })
}

/// What a job file says of files without a header.
fn raw(table: &mut Table<'_>, is_raw: bool) -> Option<RawSpec> {
    let offset = table.count("offset");
    if !is_raw {
        if offset.is_some() {
            table.problem("offset", "only raw files (format = \"raw\") have it");
        }
        return None;
    }
    if table.get("path").and_then(|node| node.get_ref().as_str()).is_some_and(|text| text.starts_with("sample:")) {
        table.problem("format", "a sample has no format");
        return None;
    }
    let needed = |table: &Table<'_>, key: &str, example: &str| {
        if !table.has(key) {
            table.problem(key, format!("missing; a raw file does not say so itself: write {example}"));
        }
    };
    needed(table, "dtype", "dtype = \"<f4\"");
    needed(table, "shape", "shape = [50, 1104, 1104]");
    let stored = table.string("dtype").and_then(|text| {
        let stored = DType::parse_stored(&text);
        if stored.is_none() {
            table.problem("dtype", format!("\"{text}\" is not a dtype; write one such as \"<f4\", \">i2\" or \"uint8\""));
        }
        stored
    });
    let shape = lengths(table, "shape");
    let (dtype, is_big_endian) = stored?;
    Some(RawSpec { dtype, is_big_endian, shape: shape?, offset: offset.unwrap_or(0) })
}

fn join(table: &mut Table<'_>) -> Option<Join> {
    let stack = table.integer("stack");
    let concat = table.integer("concat");
    if table.has("stack") && table.has("concat") {
        table.problem("concat", "`stack` and `concat` exclude each other");
    }
    stack.map(Join::Stack).or(concat.map(Join::Concat))
}

fn sample(table: &mut Table<'_>, kind: &str) -> Option<SampleSpec> {
    let is_known = SAMPLES.contains(&kind);
    if !is_known {
        let hint = nearest(kind, SAMPLES).map(|near| format!("; did you mean \"sample:{near}\"?")).unwrap_or_default();
        table.problem("path", format!("there is no sample \"{kind}\" ({}){hint}", SAMPLES.join(", ")));
    }
    let shape = lengths(table, "shape");
    let chunks = lengths(table, "chunks");
    if let Some(shape) = &shape
        && element_count(shape).and_then(|n| n.checked_mul(16)).is_none()
    {
        table.problem("shape", "has more elements than 64 bits count");
    }
    if let (Some(shape), Some(chunks)) = (&shape, &chunks)
        && shape.len() != chunks.len()
    {
        table.problem("chunks", format!("has {} entries, shape has {}", chunks.len(), shape.len()));
    }
    let dtype = table.dtype("dtype");
    let seed = table.count("seed").unwrap_or(0);
    is_known.then(|| SampleSpec { kind: kind.to_owned(), shape, chunks, dtype, seed })
}

/// A list of lengths from 1 up.
pub(super) fn lengths(table: &mut Table<'_>, key: &'static str) -> Option<Vec<u64>> {
    match table.counts(key)? {
        OneOrMany::One(n) => table.problem(key, format!("expected one length per axis, such as [64, 256, 256], found {n}")),
        OneOrMany::Many(list) if list.is_empty() => table.problem(key, "the list is empty; write one length per axis"),
        OneOrMany::Many(list) => match list.iter().position(|n| *n == 0) {
            Some(axis) => table.problem(key, format!("entry {axis} is 0; lengths are at least 1")),
            None => return Some(list),
        },
    }
    None
}

/// The pattern, its folder taken literally.
fn glob_in(folder: &Path, pattern: &str) -> String {
    let folder = resolve_path(folder, "");
    let prefix = folder.to_string_lossy();
    if prefix.is_empty() || Path::new(pattern).is_absolute() {
        return pattern.to_owned();
    }
    format!("{}/{pattern}", glob::Pattern::escape(prefix.trim_end_matches('/')))
}

/// What a pattern stands for now, in natural order: numbers in names count as numbers.
pub(super) fn look_up(pattern: &str) -> Result<Vec<String>, String> {
    // As in a shell: `*` stands for no name that begins with a dot.
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
    let entries = glob::glob_with(pattern, options).map_err(|e| format!("\"{pattern}\" is no pattern: {}", e.msg))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("\"{pattern}\": cannot read {}: {}", e.path().display(), e.error()))?;
        let text = path.to_str().ok_or_else(|| format!("\"{pattern}\": {} is not UTF-8", path.display()))?;
        paths.push(text.to_owned());
    }
    if paths.is_empty() {
        return Err(format!("\"{pattern}\" stands for nothing: no file has such a name"));
    }
    paths.sort_by(|a, b| natural::order(a.as_bytes(), b.as_bytes()));
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_keep_their_folder_literal() {
        assert_eq!(glob_in(Path::new("/data/[1]/"), "s*.zarr"), "/data/[[]1[]]/s*.zarr");
        assert_eq!(glob_in(Path::new("/data"), "/other/s*.zarr"), "/other/s*.zarr");
        assert_eq!(glob_in(Path::new("."), "s?.zarr"), "s?.zarr");
    }

    #[test]
    fn patterns_are_looked_up_in_order() {
        let folder = std::env::temp_dir().join(format!("halostream-glob[{}]", std::process::id()));
        for name in ["b.zarr", "a.zarr", "c.txt"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        let input = |path: &str, join| InputSpec {
            name: "input".to_owned(),
            line: 1,
            from: InputPlace::Glob(glob_in(&folder, path)),
            raw: None,
            array: None,
            select: None,
            join,
            keep: Vec::new(),
            missing: Missing::Fill,
            decode_cf: false,
        };
        let paths = input("*.zarr", Some(Join::Stack(0))).paths();
        let several = input("*.zarr", None).paths();
        let none = input("*.npy", None).paths();
        std::fs::remove_dir_all(&folder).unwrap();
        let want: Vec<String> = ["a.zarr", "b.zarr"].iter().map(|n| folder.join(n).to_str().unwrap().to_owned()).collect();
        assert_eq!(paths, Ok(want));
        assert!(several.unwrap_err().contains("stands for 2 arrays; add stack = 0"));
        assert!(none.unwrap_err().contains("stands for nothing"));
        assert!(look_up("a[").unwrap_err().contains("no pattern"));
    }
}
