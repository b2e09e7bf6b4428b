//! The job as JSON, kept in the output's attribute, and back as a job file.
//!
//! Keys stand in one order whatever the file's (inputs and outputs keep theirs, which means something). A float that
//! JSON cannot say is `{"$float": "nan"}`.

use serde_json::{Map, Value as Json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::table::{Node, number, to_json};

const FLOAT: &str = "$float";

/// Keys that stand first in their table, for the reader's sake; the others follow by name.
const FIRST: [&str; 5] = ["op", "name", "path", "from", "inputs"];

/// The tree as JSON. `[input]` beside `[inputs.NAME]` becomes one of them, at its place.
pub fn resolved(root: &DeTable<'_>) -> Json {
    let mut out = Map::new();
    let get = |key: &str| root.iter().find(|(k, _)| k.get_ref() == key).map(|(_, v)| v);
    if let Some(version) = get("version") {
        out.insert("version".to_owned(), value(version.get_ref()));
    }
    places(&mut out, root, "input", "inputs");
    if let Some(steps) = get("step") {
        let list = match steps.get_ref() {
            DeValue::Array(list) => Json::Array(list.iter().map(sorted).collect()),
            other => value(other),
        };
        out.insert("step".to_owned(), list);
    }
    places(&mut out, root, "output", "outputs");
    if let Some(engine) = get("engine") {
        out.insert("engine".to_owned(), sorted(engine));
    }
    for (key, node) in root {
        if !out.contains_key(key.get_ref().as_ref())
            && !["input", "inputs", "output", "outputs"].contains(&key.get_ref().as_ref())
        {
            out.insert(key.get_ref().to_string(), value(node.get_ref()));
        }
    }
    Json::Object(out)
}

fn places(out: &mut Map<String, Json>, root: &DeTable<'_>, short: &str, long: &str) {
    let list = named(root, short, long);
    match &list[..] {
        [] => {}
        [(name, node)] if *name == short => {
            out.insert(short.to_owned(), sorted(node));
        }
        list => {
            let entries = list.iter().map(|(name, node)| ((*name).to_owned(), sorted(node))).collect();
            out.insert(long.to_owned(), Json::Object(entries));
        }
    }
}

/// `[input]` and `[inputs.NAME]` with their names, in the order of the file.
pub fn named<'t>(root: &'t DeTable<'_>, short: &'t str, long: &str) -> Vec<(&'t str, &'t Node<'t>)> {
    let mut list: Vec<(usize, &'t str, &'t Node<'t>)> = Vec::new();
    for (key, node) in root {
        if key.get_ref() == short {
            list.push((key.span().start, short, node));
        } else if key.get_ref() == long
            && let DeValue::Table(table) = node.get_ref()
        {
            list.extend(table.iter().map(|(k, v): (&'t Spanned<_>, &'t Node<'_>)| (k.span().start, k.get_ref().as_ref(), v)));
        }
    }
    // `[inputs.a] .. [input] .. [inputs.b]`: the tree holds two tables, the file says one order.
    list.sort_by_key(|(start, ..)| *start);
    list.into_iter().map(|(_, name, node)| (name, node)).collect()
}

fn sorted(node: &Node<'_>) -> Json {
    let DeValue::Table(table) = node.get_ref() else {
        return value(node.get_ref());
    };
    let mut entries: Vec<_> = table.iter().map(|(k, v)| (k.get_ref().to_string(), value(v.get_ref()))).collect();
    let rank = |key: &str| FIRST.iter().position(|f| *f == key).unwrap_or(FIRST.len());
    entries.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
    Json::Object(entries.into_iter().collect())
}

fn value(from: &DeValue<'_>) -> Json {
    match from {
        DeValue::Float(_) => match number(from) {
            Some(v) if !v.is_finite() => {
                Json::Object(Map::from_iter([(FLOAT.to_owned(), Json::String(v.to_string().to_lowercase()))]))
            }
            _ => to_json(from),
        },
        DeValue::Array(list) => Json::Array(list.iter().map(|v| value(v.get_ref())).collect()),
        DeValue::Table(table) => Json::Object(table.iter().map(|(k, v)| (k.get_ref().to_string(), value(v.get_ref()))).collect()),
        other => to_json(other),
    }
}

/// A job file that says what `resolved` says. Errors: it is not an object, or holds a null or a number TOML has not.
pub fn to_toml(resolved: &Json) -> Result<String, String> {
    let Json::Object(root) = resolved else {
        return Err("the resolved job is not a JSON object".to_owned());
    };
    let mut head = String::new();
    let mut text = String::new();
    for (key, node) in root {
        match node {
            Json::Object(tables) if matches!(key.as_str(), "inputs" | "outputs") => {
                for (name, table) in tables {
                    section(&mut text, &format!("[{key}.{}]", key_text(name)), table)?;
                }
            }
            Json::Object(_) => section(&mut text, &format!("[{}]", key_text(key)), node)?,
            Json::Array(list) if key == "step" => {
                list.iter().try_for_each(|step| section(&mut text, "[[step]]", step))?;
                if list.is_empty() {
                    head.push_str("step = []\n");
                }
            }
            other => head.push_str(&line(key, other)?),
        }
    }
    Ok(head + &text)
}

fn section(text: &mut String, header: &str, table: &Json) -> Result<(), String> {
    let Json::Object(entries) = table else {
        return Err(format!("{header} of the resolved job is not a JSON object"));
    };
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(header);
    text.push('\n');
    for (key, value) in entries {
        text.push_str(&line(key, value)?);
    }
    Ok(())
}

fn line(key: &str, value: &Json) -> Result<String, String> {
    let value = toml_value(value).map_err(|e| format!("{key} of the resolved job {e}"))?;
    Ok(format!("{} = {value}\n", key_text(key)))
}

fn key_text(key: &str) -> String {
    let is_bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if is_bare { key.to_owned() } else { toml::Value::String(key.to_owned()).to_string() }
}

fn toml_value(json: &Json) -> Result<toml::Value, String> {
    use toml::Value;
    Ok(match json {
        Json::Null => return Err("is null, which TOML has not".to_owned()),
        Json::Bool(b) => Value::Boolean(*b),
        Json::String(s) => Value::String(s.clone()),
        Json::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => Value::Integer(i),
            (None, Some(f)) if n.is_f64() => Value::Float(f),
            _ => return Err(format!("is {n}, which does not fit 64 bits")),
        },
        Json::Array(list) => Value::Array(list.iter().map(toml_value).collect::<Result<_, _>>()?),
        Json::Object(table) => match table.get(FLOAT).and_then(Json::as_str).and_then(|f| f.parse().ok()) {
            Some(float) if table.len() == 1 => Value::Float(float),
            _ => {
                let entries = table.iter().map(|(k, v)| Ok((k.clone(), toml_value(v)?)));
                Value::Table(entries.collect::<Result<_, String>>()?)
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        let (root, errors) = DeTable::parse_recoverable(text);
        assert!(errors.is_empty(), "{errors:?}");
        resolved(root.get_ref())
    }

    const JOB: &str = r#"
        [engine]
        memory = "1GiB"
        [inputs.b]
        path = "b\u0001\\\"\n.zarr"
        [input]
        select = "0"
        path = "a.zarr"
        [inputs."odd name"]
        path = "c"
        [output]
        path = "${X}/o.zarr"
        [[step]]
        sigma = [1.5, 1, 0.1, 1e-30, 1e22, 2.0]
        params = { z = 1, a = [{ k = true }], "y.z" = "" }
        op = "external"
        inputs = [{ from = "input", boundary = ["reflect", [nan, -inf]] }]
        [[step]]
        op = "cast"
        boundary = inf
    "#;

    #[test]
    fn order_and_floats() {
        let got = json(JOB);
        assert_eq!(got.as_object().unwrap().keys().collect::<Vec<_>>(), ["inputs", "step", "output", "engine"]);
        assert_eq!(got["inputs"].as_object().unwrap().keys().collect::<Vec<_>>(), ["b", "input", "odd name"]);
        assert_eq!(got["step"][0].as_object().unwrap().keys().collect::<Vec<_>>(), ["op", "inputs", "params", "sigma"]);
        assert_eq!(got["step"][0]["params"].as_object().unwrap().keys().collect::<Vec<_>>(), ["z", "a", "y.z"]);
        assert_eq!(got["step"][0]["inputs"][0]["boundary"][1][0]["$float"], "nan");
        assert_eq!(json("version = 1\n[input]\npath = 'a'").to_string(), r#"{"version":1,"input":{"path":"a"}}"#);
        assert_eq!(json("[inputs.input]\npath = 'a'"), json("[input]\npath = 'a'"));
    }

    #[test]
    fn there_and_back() {
        for text in [JOB, "version = 1", "", "step = []\nversion = 1\n[output]\npath = '''it's'''"] {
            let first = json(text);
            let file = to_toml(&first).unwrap();
            let second = json(&file);
            assert_eq!(first.to_string(), second.to_string(), "{file}");
        }
    }

    #[test]
    fn refused() {
        for text in ["null", "[]", r#"{"input": {"path": null}}"#, r#"{"inputs": {"a": 1}}"#, r#"{"step": [1]}"#] {
            assert!(to_toml(&serde_json::from_str(text).unwrap()).is_err(), "{text}");
        }
        assert!(to_toml(&serde_json::json!({ "version": u64::MAX })).unwrap_err().contains("64 bits"));
    }
}
