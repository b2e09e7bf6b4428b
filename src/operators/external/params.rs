//! The parameters of `external` as written in a job file. Readers return `None` after they reported a problem.

use std::time::Duration;

use serde_json::{Map, Value};
use toml::de::DeValue;

use crate::array::DType;
use crate::child::Program;
use crate::config::table::{Node, Table, describe, integer, number, to_json};
use crate::config::units::{parse_bytes, parse_duration};
use crate::config::{DepthSpec, overlap};
use crate::operators::Operator;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_CHILD_MEMORY: u64 = 1 << 30;
/// Larger lengths and depths are slips: no block of that size fits any machine.
const MAX_LENGTH: i64 = 1 << 40;

/// `external` as written, before its inputs are known.
pub struct Settings {
    pub program: Program,
    pub depth: DepthSpec,
    /// `None`: not written, so `true` unless `block_shape` says otherwise.
    pub trim: Option<bool>,
    pub outputs: Vec<(String, DType)>,
    pub drop_axes: Vec<i64>,
    /// Position and length.
    pub new_axes: Vec<(i64, u64)>,
    pub block_shape: Option<Vec<u64>>,
}

/// Reads a step's table.
pub fn build(table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    // All of them are read before the first `?`, so that all problems are reported at once.
    let program = program(table);
    let depth = given(table, "depth", overlap::depth);
    let trim = given(table, "trim", |t, key| t.bool(key));
    let outputs = outputs(table);
    let drop_axes = integers(table, "drop_axes");
    let new_axes = new_axes(table);
    let block_shape = block_shape(table);
    Some(Box::new(Settings {
        program: program?,
        depth: depth?.unwrap_or(DepthSpec::All(0)),
        trim: trim?,
        outputs: outputs?,
        drop_axes: drop_axes?,
        new_axes: new_axes?,
        block_shape: block_shape?,
    }))
}

/// Reads what a child process is started with: `command`, `timeout`, `child_memory`, `params`.
pub fn program(table: &mut Table<'_>) -> Option<Program> {
    let command = command(table);
    let timeout = unit(table, "timeout", duration);
    let memory = unit(table, "child_memory", bytes);
    let params = params(table);
    Some(Program {
        command: command?,
        params: params?,
        timeout: timeout?.unwrap_or(DEFAULT_TIMEOUT),
        memory: memory?.unwrap_or(DEFAULT_CHILD_MEMORY),
    })
}

/// `Some(None)`: the key is not there.
fn given<'t, T>(
    table: &mut Table<'t>,
    key: &'static str,
    read: impl FnOnce(&mut Table<'t>, &'static str) -> Option<T>,
) -> Option<Option<T>> {
    if table.has(key) {
        return read(table, key).map(Some);
    }
    table.allow(key);
    Some(None)
}

fn command(table: &mut Table<'_>) -> Option<Vec<String>> {
    let command = given(table, "command", |t, key| t.strings(key))?;
    match command {
        Some(command) if command.first().is_some_and(|program| !program.is_empty()) => Some(command),
        Some(_) => {
            table.problem("command", "names no program; write a list such as [\"python3\", \"myop.py\"]");
            None
        }
        None => {
            table.problem("command", "missing: the program to run, a list such as [\"python3\", \"myop.py\"]");
            None
        }
    }
}

/// A number of elements.
fn cells(value: &DeValue<'_>) -> Result<u64, String> {
    match integer(value) {
        Some(n @ 0..=MAX_LENGTH) => Ok(n as u64),
        Some(n) if n < 0 => Err(format!("{n} is negative; a length counts elements, from 0 up")),
        Some(n) => Err(format!("{n} is beyond {MAX_LENGTH} elements")),
        None => Err(format!("expected an integer from 0 up, found {}", describe(value))),
    }
}

fn outputs(table: &mut Table<'_>) -> Option<Vec<(String, DType)>> {
    let dtype = given(table, "dtype", |t, key| t.dtype(key));
    let entries = tables(table, "outputs");
    let (dtype, entries) = (dtype?, entries?);
    let key = if entries.is_empty() { "dtype" } else { "outputs" };
    match (dtype, entries.is_empty()) {
        (Some(dtype), true) => return Some(vec![("output".to_owned(), dtype)]),
        (None, false) => {}
        (None, true) => {
            table.problem(key, "missing: the dtype the function returns (or, for several outputs, `outputs`)");
            return None;
        }
        (Some(_), false) => {
            table.problem(key, "dtype and outputs exclude each other: give one");
            return None;
        }
    }
    let mut outputs: Vec<(String, DType)> = Vec::new();
    let mut is_sound = true;
    for mut entry in entries {
        let (name, dtype) = (required(&mut entry, "name", |t, k| t.string(k)), required(&mut entry, "dtype", |t, k| t.dtype(k)));
        if let (Some(name), Some(dtype)) = (name, dtype) {
            let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            if !is_word {
                entry.problem("name", format!("{name:?} is no output name: use letters, digits, _ and -"));
                is_sound = false;
            } else if outputs.iter().any(|(n, _)| *n == name) {
                entry.problem("name", format!("two outputs are called {name}"));
                is_sound = false;
            }
            outputs.push((name, dtype));
        } else {
            is_sound = false;
        }
        entry.finish();
    }
    is_sound.then_some(outputs)
}

fn integers(table: &mut Table<'_>, key: &'static str) -> Option<Vec<i64>> {
    Some(match given(table, key, |t, key| t.integers(key))? {
        None => Vec::new(),
        Some(list) => match list {
            crate::config::OneOrMany::One(n) => vec![n],
            crate::config::OneOrMany::Many(list) => list,
        },
    })
}

fn new_axes(table: &mut Table<'_>) -> Option<Vec<(i64, u64)>> {
    let mut axes = Vec::new();
    let mut is_sound = true;
    for mut entry in tables(table, "new_axes")? {
        let axis = required(&mut entry, "axis", |t, k| t.integer(k));
        let length = required(&mut entry, "length", |t, k| {
            let value = t.get(k)?;
            cells(value.get_ref()).map_err(|e| t.problem(k, e)).ok()
        });
        match (axis, length) {
            (Some(axis), Some(length)) => axes.push((axis, length)),
            _ => is_sound = false,
        }
        entry.finish();
    }
    is_sound.then_some(axes)
}

fn block_shape(table: &mut Table<'_>) -> Option<Option<Vec<u64>>> {
    let Some(node) = table.get("block_shape") else { return Some(None) };
    let DeValue::Array(list) = node.get_ref() else {
        table.problem("block_shape", format!("expected a list of lengths, found {}", describe(node.get_ref())));
        return None;
    };
    match list.iter().map(|v| cells(v.get_ref())).collect::<Result<Vec<_>, _>>() {
        Ok(shape) if shape.is_empty() => Some(None),
        Ok(shape) => Some(Some(shape)),
        Err(e) => {
            table.problem("block_shape", e);
            None
        }
    }
}

fn params(table: &mut Table<'_>) -> Option<Value> {
    let Some(node) = table.get("params") else { return Some(Value::Object(Map::new())) };
    let checked = match node.get_ref() {
        DeValue::Table(_) => has_json(node.get_ref()),
        other => Err(format!("expected a table, found {}", describe(other))),
    };
    checked.map_err(|e| table.problem("params", e)).ok()?;
    Some(to_json(node.get_ref()))
}

/// Refuses what JSON would turn into something else.
fn has_json(value: &DeValue<'_>) -> Result<(), String> {
    match value {
        DeValue::Integer(i) if integer(value).is_none() => Err(format!("{} is beyond 64 bits", i.as_str())),
        DeValue::Float(f) if !number(value).is_some_and(f64::is_finite) => {
            Err(format!("{} has no JSON; pass a string and let the function read it", f.as_str()))
        }
        DeValue::Array(list) => list.iter().try_for_each(|v| has_json(v.get_ref())),
        DeValue::Table(table) => table.iter().try_for_each(|(_, v)| has_json(v.get_ref())),
        _ => Ok(()),
    }
}

/// A list of tables; none when the key is not there.
fn tables<'t>(table: &mut Table<'t>, key: &'static str) -> Option<Vec<Table<'t>>> {
    let Some(node) = table.get(key) else { return Some(Vec::new()) };
    let DeValue::Array(list) = node.get_ref() else {
        table.problem(key, format!("expected a list of tables, found {}", describe(node.get_ref())));
        return None;
    };
    let entry = |(i, node): (usize, &'t Node<'t>)| match node.get_ref() {
        DeValue::Table(entry) => Some(Table::new(entry, node.span(), format!("{}[{i}]", table.key(key)), table.problems.clone())),
        other => {
            let name = format!("{}[{i}]", table.key(key));
            table.problems.add(Some(&node.span()), name, format!("expected a table, found {}", describe(other)));
            None
        }
    };
    list.iter().enumerate().map(entry).collect()
}

fn required<'t, T>(
    table: &mut Table<'t>,
    key: &'static str,
    read: impl FnOnce(&mut Table<'t>, &'static str) -> Option<T>,
) -> Option<T> {
    let value = given(table, key, read)?;
    if value.is_none() {
        table.problem(key, "missing");
    }
    value
}

fn unit<T>(table: &mut Table<'_>, key: &'static str, parse: fn(&str) -> Result<T, String>) -> Option<Option<T>> {
    given(table, key, |t, key| {
        let text = t.string(key)?;
        parse(&text).map_err(|e| t.problem(key, e)).ok()
    })
}

/// `"5min"`, above zero.
fn duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("no answer comes in no time; write a duration such as \"5min\"".to_owned()),
        time => Ok(time),
    }
}

/// `"1GiB"`, above zero.
fn bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("no program runs in no memory; write a size such as \"1GiB\"".to_owned()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table::Problems;
    use toml::de::DeTable;

    /// What is wrong with a step's text, one line per problem.
    fn problems(text: &str) -> (bool, String) {
        let parsed = DeTable::parse(text).unwrap();
        let list = Problems::new(text);
        let mut table = Table::new(parsed.get_ref(), parsed.span(), "step[0]", list.clone());
        let built = build(&mut table).is_some();
        table.finish();
        (built, list.take().iter().map(|p| p.to_string()).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn a_whole_step_is_read() {
        let text = r#"
            command = ["python3", "myop.py"]
            depth = [1, [2, 0]]
            trim = false
            outputs = [{ name = "a", dtype = "int64" }, { name = "b", dtype = "<f4" }]
            drop_axes = [-1]
            new_axes = [{ axis = 0, length = 3 }]
            block_shape = [3, 4]
            timeout = "5min"
            child_memory = "512MiB"
            params = { r = [1, 1], name = "x" }
        "#;
        assert_eq!(problems(text), (true, String::new()));
        assert_eq!(problems("command = [\"x\"]\ndtype = \"float32\"").1, "");
    }

    #[test]
    fn every_problem_is_found_at_once() {
        let text = "depth = [1, -2]\ndtype = \"float33\"\noutputs = [{ name = \"a/b\" }]\nnew_axes = [{ axis = 0, lenght = 3 }]\n\
                    timeout = \"soon\"\nchild_memory = \"1XB\"\nparams = { a = [nan] }\ncomand = 1\nblock_shape = 3";
        let (built, found) = problems(text);
        assert!(!built);
        for part in [
            "step[0].command: missing",
            "line 1: step[0].depth[1]: a depth cannot be negative",
            "line 2: step[0].dtype: \"float33\" is not a dtype",
            "line 4: step[0].new_axes[0].length: missing",
            "lenght: unknown key; did you mean `length`?",
            "step[0].timeout: \"soon\"",
            "step[0].child_memory: \"1XB\"",
            "nan has no JSON",
            "did you mean `command`?",
            "line 9: step[0].block_shape: expected a list",
        ] {
            assert!(found.contains(part), "no {part:?} in:\n{found}");
        }
    }

    #[test]
    fn outputs_are_named_once_and_plainly() {
        let one = |outputs: &str| problems(&format!("command = [\"x\"]\noutputs = {outputs}")).1;
        assert!(one(r#"[{ name = "a", dtype = "u1" }, { name = "a", dtype = "u1" }]"#).contains("two outputs are called a"));
        assert!(one(r#"[{ name = "a.b", dtype = "u1" }]"#).contains("no output name"));
        assert!(one(r#"[{ name = "a" }]"#).contains("outputs[0].dtype: missing"));
        assert!(one("[]").contains("step[0].dtype: missing"));
        assert!(one("[{ name = \"a\", dtype = \"u1\" }]\ndtype = \"u1\"").contains("exclude each other"));
        assert!(problems("command = []\ndtype = \"u1\"").1.contains("names no program"));
    }

    #[test]
    fn nothing_is_no_limit() {
        assert!(problems("command = [\"x\"]\ndtype = \"u1\"\ntimeout = \"0s\"").1.contains("step[0].timeout: no answer"));
        assert!(problems("command = [\"x\"]\ndtype = \"u1\"\nchild_memory = \"0\"").1.contains("step[0].child_memory"));
    }
}
