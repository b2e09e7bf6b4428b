//! `boundary` and `depth` as a job file writes them: one value for all axes, one per axis, or one per side.

use toml::de::DeValue;

use super::table::{Node, Table, describe, integer, nearest, number};
use super::{BoundarySpec, DepthSpec};
use crate::array::Rule;

/// Above this a depth is a slip: no axis is that long.
const MAX_DEPTH: i64 = 1 << 40;

const RULES: [(&str, Rule); 5] = [
    ("reflect", Rule::Reflect),
    ("mirror", Rule::Mirror),
    ("nearest", Rule::Nearest),
    ("periodic", Rule::Periodic),
    ("none", Rule::None),
];

/// `boundary = "reflect"`, `7`, `["reflect", 7]` (per axis), `[["reflect", 7], "none"]` (before, after of axis 0).
pub fn boundary(table: &mut Table<'_>, key: &'static str) -> Option<BoundarySpec> {
    let node = table.get(key)?;
    let path = table.key(key);
    let DeValue::Array(list) = node.get_ref() else {
        return rule(table, node, &path).map(BoundarySpec::All);
    };
    let axes = list.iter().enumerate().map(|(axis, entry)| {
        let path = format!("{path}[{axis}]");
        match entry.get_ref() {
            DeValue::Array(sides) => match &sides[..] {
                [before, after] => {
                    let before = rule(table, before, &format!("{path}[0]"));
                    Some([before?, rule(table, after, &format!("{path}[1]"))?])
                }
                sides => {
                    let message = format!("an axis has two sides, [before, after], found {} entries", sides.len());
                    table.problems.add(Some(&entry.span()), path, message);
                    None
                }
            },
            _ => rule(table, entry, &path).map(|r| [r; 2]),
        }
    });
    // Every entry is looked at, so that all problems are told.
    let axes: Vec<_> = axes.collect();
    axes.into_iter().collect::<Option<_>>().map(BoundarySpec::PerAxis)
}

fn rule(table: &Table<'_>, node: &Node<'_>, path: &str) -> Option<Rule> {
    match read_rule(node.get_ref()) {
        Ok(rule) => Some(rule),
        Err(message) => {
            table.problems.add(Some(&node.span()), path, message);
            None
        }
    }
}

fn read_rule(value: &DeValue<'_>) -> Result<Rule, String> {
    let known = || RULES.map(|(word, _)| format!("\"{word}\"")).join(", ");
    match value {
        DeValue::String(text) => {
            let word = text.as_ref();
            if let Some((_, rule)) = RULES.iter().find(|(name, _)| *name == word) {
                return Ok(*rule);
            }
            // The same rules under the names of numpy, scipy, Dask and xarray.
            let hint = match word {
                "symmetric" | "grid-mirror" => Some("\"reflect\"".to_owned()),
                "wrap" | "grid-wrap" | "circular" => Some("\"periodic\"".to_owned()),
                "edge" | "replicate" => Some("\"nearest\"".to_owned()),
                "constant" | "grid-constant" => Some("the number itself, without quotes".to_owned()),
                _ if word.parse::<f64>().is_ok() => Some(format!("{word} without quotes")),
                _ => nearest(word, RULES.map(|(name, _)| name)).map(|near| format!("\"{near}\"")),
            };
            let hint = hint.map(|h| format!("; did you mean {h}?")).unwrap_or_default();
            Err(format!("\"{word}\" is no boundary rule ({}, or a number){hint}", known()))
        }
        DeValue::Integer(_) | DeValue::Float(_) => {
            let constant = number(value).filter(|v| integer(value).is_none_or(|i| i128::from(i) == *v as i128));
            constant.map(Rule::Constant).ok_or_else(|| format!("{} cannot be held exactly by a float64", describe(value)))
        }
        other => Err(format!("expected a boundary rule ({}) or a number, found {}", known(), describe(other))),
    }
}

/// `depth = 2`, `[1, 2]` (per axis), `[[1, 2], 3]` (before, after of axis 0).
pub fn depth(table: &mut Table<'_>, key: &'static str) -> Option<DepthSpec> {
    let node = table.get(key)?;
    let path = table.key(key);
    let DeValue::Array(list) = node.get_ref() else {
        return elements(table, node, &path).map(DepthSpec::All);
    };
    let axes = list.iter().enumerate().map(|(axis, entry)| {
        let path = format!("{path}[{axis}]");
        match entry.get_ref() {
            DeValue::Array(sides) => match &sides[..] {
                [before, after] => {
                    let before = elements(table, before, &format!("{path}[0]"));
                    let after = elements(table, after, &format!("{path}[1]"));
                    Some((before?, after?))
                }
                sides => {
                    let message = format!("an axis has two sides, [before, after], found {} entries", sides.len());
                    table.problems.add(Some(&entry.span()), path, message);
                    None
                }
            },
            _ => elements(table, entry, &path).map(|d| (d, d)),
        }
    });
    let axes: Vec<_> = axes.collect();
    axes.into_iter().collect::<Option<_>>().map(DepthSpec::PerAxis)
}

fn elements(table: &Table<'_>, node: &Node<'_>, path: &str) -> Option<u64> {
    let value = node.get_ref();
    let message = match integer(value) {
        Some(n @ 0..=MAX_DEPTH) => return Some(n.unsigned_abs()),
        Some(n) if n < 0 => format!("a depth cannot be negative, found {n}"),
        _ => format!("expected a number of elements from 0 up, found {}", describe(value)),
    };
    table.problems.add(Some(&node.span()), path, message);
    None
}

#[cfg(test)]
mod tests {
    use super::super::table::Problems;
    use super::*;
    use toml::de::DeTable;

    fn with<T>(text: &str, read: impl Fn(&mut Table<'_>) -> Option<T>) -> Result<T, Vec<String>> {
        let (root, errors) = DeTable::parse_recoverable(text);
        assert!(errors.is_empty(), "{text}");
        let problems = Problems::new(text);
        let mut table = Table::new(root.get_ref(), root.span(), "step[0]", problems.clone());
        let value = read(&mut table);
        let list: Vec<String> = problems.take().iter().map(ToString::to_string).collect();
        assert_eq!(value.is_none(), !list.is_empty(), "{text}: a problem or a value");
        value.ok_or(list)
    }

    #[test]
    fn boundaries() {
        let read = |text: &str| with(&format!("boundary = {text}"), |t| boundary(t, "boundary"));
        use Rule::*;
        assert_eq!(read("\"mirror\""), Ok(BoundarySpec::All(Mirror)));
        assert_eq!(read("7"), Ok(BoundarySpec::All(Constant(7.0))));
        assert_eq!(read("-inf"), Ok(BoundarySpec::All(Constant(f64::NEG_INFINITY))));
        assert!(matches!(read("nan"), Ok(BoundarySpec::All(Constant(v))) if v.is_nan()));
        let per_axis = BoundarySpec::PerAxis(vec![[Reflect; 2], [None, Constant(0.5)], [Constant(1e6); 2]]);
        assert_eq!(read("[\"reflect\", [\"none\", 0.5], 1_000_000.0]"), Ok(per_axis));

        let error = |text: &str| read(text).unwrap_err().join("\n");
        assert_eq!(
            error("\"reflekt\""),
            "line 1: step[0].boundary: \"reflekt\" is no boundary rule (\"reflect\", \"mirror\", \"nearest\", \"periodic\", \
             \"none\", or a number); did you mean \"reflect\"?"
        );
        assert!(error("\"wrap\"").ends_with("did you mean \"periodic\"?"));
        assert!(error("\"symmetric\"").ends_with("did you mean \"reflect\"?"));
        assert!(error("\"constant\"").ends_with("did you mean the number itself, without quotes?"));
        assert!(error("\"nan\"").ends_with("did you mean nan without quotes?"));
        assert!(error("true").contains("found true"));
        assert!(error("1e999").contains("exactly"));
        assert!(error("9007199254740993").contains("exactly"));
        assert!(error("[[\"reflect\"]]").contains("step[0].boundary[0]: an axis has two sides"));
        let two = error("[\n\"edgy\",\n[0, \"x\"]]");
        assert!(two.contains("line 2: step[0].boundary[0]: \"edgy\"") && two.contains("line 3: step[0].boundary[1][1]"), "{two}");
    }

    #[test]
    fn depths() {
        let read = |text: &str| with(&format!("depth = {text}"), |t| depth(t, "depth"));
        assert_eq!(read("2"), Ok(DepthSpec::All(2)));
        assert_eq!(read("[1, [0, 3]]"), Ok(DepthSpec::PerAxis(vec![(1, 1), (0, 3)])));
        assert_eq!(read("-1"), Err(vec!["line 1: step[0].depth: a depth cannot be negative, found -1".to_owned()]));
        assert_eq!(read("[[1, -2]]").unwrap_err(), ["line 1: step[0].depth[0][1]: a depth cannot be negative, found -2"]);
        assert!(read("1.5").unwrap_err()[0].contains("found the number 1.5"));
        assert!(read("9223372036854775807").is_err());
        assert!(read("[[1, 2, 3]]").unwrap_err()[0].contains("two sides"));
    }
}
