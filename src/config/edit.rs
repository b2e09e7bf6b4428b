//! Changes to a parsed job before it is read: `--set key=value` from the command line, and `${VAR}` in its strings.
//!
//! Both work on the tree and never on the text, so no value can turn into keys, and lines stay those of the file.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::table::{Node, Problems, SET_SPAN};

/// Applies `--set` in the order given; what cannot be placed is a problem.
pub fn set_all<'i>(root: &mut DeTable<'i>, sets: &'i [(String, String)], problems: &Problems) {
    for (key, text) in sets {
        if let Err(message) = set(root, key, value_of(text)) {
            problems.add(Some(&SET_SPAN), key.as_str(), message);
        }
    }
}

/// TOML if it is TOML, else the text itself.
fn value_of(text: &str) -> DeValue<'_> {
    match DeValue::parse(text.trim()) {
        Ok(value) => from_command_line(value.into_inner()),
        Err(_) => DeValue::String(Cow::Borrowed(text)),
    }
}

/// The value with every place inside it marked as `--set`'s.
fn from_command_line(value: DeValue<'_>) -> DeValue<'_> {
    match value {
        DeValue::Array(list) => {
            let mut out = DeArray::new();
            for entry in list {
                out.push(placed(entry.into_inner()));
            }
            DeValue::Array(out)
        }
        DeValue::Table(table) => DeValue::Table(
            table.into_iter().map(|(k, v)| (Spanned::new(SET_SPAN, k.into_inner()), placed(v.into_inner()))).collect(),
        ),
        scalar => scalar,
    }
}

fn placed(value: DeValue<'_>) -> Node<'_> {
    Spanned::new(SET_SPAN, from_command_line(value))
}

fn set<'i>(root: &mut DeTable<'i>, key: &'i str, value: DeValue<'i>) -> Result<(), String> {
    let mut path: Vec<&'i str> = key.split('.').collect();
    if path.iter().any(|part| part.trim().is_empty()) {
        return Err("is no key; write --set output.if_exists=overwrite or --set step.0.sigma=2.5".to_owned());
    }
    if path.len() > 1 {
        match path[0] {
            "input" | "inputs" => existing(root, &mut path, "input", "inputs")?,
            "output" | "outputs" => existing(root, &mut path, "output", "outputs")?,
            _ => {}
        }
    }
    if path[0] == "step" && path.len() > 1 {
        let Some(DeValue::Array(steps)) = child(root, "step").map(Spanned::get_mut) else {
            return Err("the job has no steps".to_owned());
        };
        let index = step_index(steps, path[1])?;
        let step = &mut (**steps)[index];
        if path.len() == 2 {
            *step = Spanned::new(SET_SPAN, value);
            return Ok(());
        }
        return place(step.get_mut(), &path[..2], &path[2..], value);
    }
    place_in_table(root, &[], &path, value)
}

fn child<'m, 'i>(table: &'m mut DeTable<'i>, key: &str) -> Option<&'m mut Node<'i>> {
    table.iter_mut().find(|(k, _)| k.get_ref() == key).map(|(_, v)| v)
}

/// `input.path` and `inputs.input.path` are one place, however the file writes it. A name that the job does not have is
/// refused: it would silently become one input more.
fn existing(root: &mut DeTable<'_>, path: &mut Vec<&str>, short: &'static str, long: &'static str) -> Result<(), String> {
    let has_short = child(root, short).is_some();
    let names: Vec<String> = match child(root, long).map(Spanned::get_mut) {
        Some(DeValue::Table(table)) => table.keys().map(|k| k.get_ref().to_string()).collect(),
        _ => Vec::new(),
    };
    let name = if path[0] == short { short } else { path[1] };
    if name == short {
        if path[0] == long && has_short && !names.iter().any(|n| n == short) {
            path.remove(0);
        } else if path[0] == short && !has_short && names.iter().any(|n| n == short) {
            path.insert(0, long);
        }
    }
    let is_known = names.iter().any(|n| n == name) || (name == short && has_short);
    if is_known || (names.is_empty() && !has_short) {
        return Ok(());
    }
    let known = names.into_iter().chain(has_short.then(|| short.to_owned())).collect::<Vec<_>>().join(", ");
    Err(format!("the job has no {short} \"{name}\"; it has {known}"))
}

fn step_index(steps: &DeArray<'_>, which: &str) -> Result<usize, String> {
    let word = |step: &Node<'_>, key: &str| match step.get_ref() {
        DeValue::Table(t) => {
            t.iter().find(|(k, _)| k.get_ref() == key).and_then(|(_, v)| v.get_ref().as_str().map(str::to_owned))
        }
        _ => None,
    };
    let names: Vec<String> = steps.iter().map(|s| word(s, "name").or_else(|| word(s, "op")).unwrap_or_default()).collect();
    if let Some(index) = names.iter().position(|n| n == which) {
        return Ok(index);
    }
    match which.parse::<usize>() {
        Ok(index) if index < steps.len() => Ok(index),
        _ => Err(format!("the job has no step \"{which}\"; it has {} (counted from 0)", names.join(", "))),
    }
}

/// Walks down `path` from `node` and puts `value` there; tables that are not there yet are made.
fn place<'i>(node: &mut DeValue<'i>, above: &[&str], path: &[&'i str], value: DeValue<'i>) -> Result<(), String> {
    match node {
        DeValue::Table(table) => place_in_table(table, above, path, value),
        DeValue::Array(list) => {
            let len = list.len();
            let entry = path[0].parse::<usize>().ok().and_then(|i| list.get_mut(i));
            let entry = entry.ok_or_else(|| format!("`{}` has no entry {} (it has {len})", above.join("."), path[0]))?;
            if path.len() == 1 {
                *entry = Spanned::new(SET_SPAN, value);
                return Ok(());
            }
            place(entry.get_mut(), &[above, &path[..1]].concat(), &path[1..], value)
        }
        _ => Err(format!("`{}` is not a table", above.join("."))),
    }
}

fn place_in_table<'i>(table: &mut DeTable<'i>, above: &[&str], path: &[&'i str], value: DeValue<'i>) -> Result<(), String> {
    let key = path[0];
    let new = |value| Spanned::new(SET_SPAN, value);
    match child(table, key) {
        Some(node) if path.len() == 1 => *node = new(value),
        Some(node) => return place(node.get_mut(), &[above, &path[..1]].concat(), &path[1..], value),
        None if path.len() == 1 => {
            table.insert(Spanned::new(SET_SPAN, Cow::Borrowed(key)), new(value));
        }
        None => {
            let mut made = DeTable::new();
            place_in_table(&mut made, &[above, &path[..1]].concat(), &path[1..], value)?;
            table.insert(Spanned::new(SET_SPAN, Cow::Borrowed(key)), new(DeValue::Table(made)));
        }
    }
    Ok(())
}

/// Replaces `${VAR}` in every string below `table`; `$${` stands for `${`. Unknown variables are problems.
pub fn expand(table: &mut DeTable<'_>, env: &dyn Fn(&str) -> Option<String>, problems: &Problems) {
    expand_table(table, "", env, problems);
}

fn expand_table(table: &mut DeTable<'_>, path: &str, env: &dyn Fn(&str) -> Option<String>, problems: &Problems) {
    for (key, node) in table.iter_mut() {
        let path = if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
        expand_node(node, &path, env, problems);
    }
}

fn expand_node(node: &mut Node<'_>, path: &str, env: &dyn Fn(&str) -> Option<String>, problems: &Problems) {
    let span = node.span();
    match node.get_mut() {
        DeValue::String(text) if text.contains("${") => match expand_text(text, env) {
            Ok(expanded) => *text = Cow::Owned(expanded),
            Err(message) => problems.add(Some(&span), path, message),
        },
        DeValue::Array(list) => {
            for (i, entry) in list.iter_mut().enumerate() {
                expand_node(entry, &format!("{path}[{i}]"), env, problems);
            }
        }
        DeValue::Table(table) => expand_table(table, path, env, problems),
        _ => {}
    }
}

fn expand_text(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(escaped) = before.strip_suffix('$') {
            out.push_str(escaped);
            out.push_str("${");
            rest = &from[2..];
            continue;
        }
        out.push_str(before);
        let end = from.find('}').ok_or("a \"${\" without its \"}\"; write \"$${\" for the characters themselves")?;
        let name = &from[2..end];
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return Err(format!("\"${{{name}}}\" names no variable; write \"$${{\" for the characters themselves"));
        }
        let value = env(name).ok_or_else(|| format!("the environment has no variable {name} (of \"${{{name}}}\")"))?;
        out.push_str(&value);
        rest = &from[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, sets: &[(&str, &str)]) -> Result<toml::Table, String> {
        let sets: Vec<_> = sets.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let problems = Problems::new(text);
        let (mut root, errors) = DeTable::parse_recoverable(text);
        assert!(errors.is_empty());
        set_all(root.get_mut(), &sets, &problems);
        let list: Vec<_> = problems.take().iter().map(ToString::to_string).collect();
        if list.is_empty() {
            toml::from_str(&super::super::to_toml(&super::super::resolved::resolved(root.get_ref())).unwrap())
                .map_err(|e| e.to_string())
        } else {
            Err(list.join("\n"))
        }
    }

    #[test]
    fn places() {
        let text = "[input]\npath = 'a.zarr'\n[[step]]\nop = 'cast'\n[[step]]\nop = 'f'\nname = 'g'\nsigma = [1, 2]\n[output]\npath = 'b.zarr'";
        let get = |sets: &[(&str, &str)], path: &[&str]| {
            let table = edited(text, sets).unwrap();
            let mut value = toml::Value::Table(table);
            for key in path {
                value = match key.parse::<usize>() {
                    Ok(i) => value[i].clone(),
                    Err(_) => value[*key].clone(),
                };
            }
            value.to_string()
        };
        assert_eq!(get(&[("engine.memory", "2GiB")], &["engine", "memory"]), "\"2GiB\"");
        assert_eq!(get(&[("engine.workers", "3")], &["engine", "workers"]), "3");
        assert_eq!(get(&[("input.path", "c.zarr"), ("input.path", "d.zarr")], &["input", "path"]), "\"d.zarr\"");
        assert_eq!(get(&[("inputs.input.path", "c.zarr")], &["input", "path"]), "\"c.zarr\"");
        assert_eq!(get(&[("step.1.sigma.0", "7.5")], &["step", "1", "sigma", "0"]), "7.5");
        assert_eq!(get(&[("step.g.boundary", "['none', 1]")], &["step", "1", "boundary", "0"]), "\"none\"");
        assert_eq!(get(&[("step.cast.params.deep.r", "{ a = 1 }")], &["step", "0", "params", "deep", "r", "a"]), "1");
        assert_eq!(get(&[("output.path", " spaced name")], &["output", "path"]), "\" spaced name\"");
    }

    #[test]
    fn refused() {
        let text = "[inputs.a]\npath = 'a.zarr'\n[[step]]\nop = 'cast'\n[output]\npath = 'b.zarr'";
        let error = |key: &str| edited(text, &[(key, "1")]).unwrap_err();
        assert_eq!(error("input.path"), "--set input.path: the job has no input \"input\"; it has a");
        assert_eq!(error("inputs.b.path"), "--set inputs.b.path: the job has no input \"b\"; it has a");
        assert_eq!(error("outputs.b.path"), "--set outputs.b.path: the job has no output \"b\"; it has output");
        assert_eq!(error("step.3.x"), "--set step.3.x: the job has no step \"3\"; it has cast (counted from 0)");
        assert_eq!(error("output.path.x"), "--set output.path.x: `output.path` is not a table");
        assert!(error("a..b").contains("is no key"));
        assert!(error("").contains("is no key"));
    }

    #[test]
    fn variables() {
        let env = |name: &str| (name == "HOME").then(|| "/home/${USER}".to_owned());
        let expand = |text: &str| expand_text(text, &env);
        assert_eq!(expand("${HOME}/a-${HOME}").unwrap(), "/home/${USER}/a-/home/${USER}");
        assert_eq!(expand("$${HOME} costs $5 {}").unwrap(), "${HOME} costs $5 {}");
        assert!(expand("${WHERE}/x").unwrap_err().contains("no variable WHERE"));
        assert!(expand("${HOME").unwrap_err().contains("without its"));
        assert!(expand("${}").unwrap_err().contains("names no variable"));
        assert!(expand("${a b}").unwrap_err().contains("names no variable"));
    }
}
