//! `[[step]]`: an operator, its inputs, and what lies outside them. The operator reads its own parameters.

use toml::de::DeValue;

use super::overlap;
use super::table::{Node, Table, describe, nearest};
use super::{StepInputSpec, StepSpec};
use crate::operators::{self, Info, OPERATORS};

/// Operators named in the message about one that does not exist.
const LISTED: usize = 8;

/// The name of a step before it is read: for references to it.
pub fn name_of(node: &Node<'_>) -> Option<String> {
    let DeValue::Table(table) = node.get_ref() else {
        return None;
    };
    let word = |key: &str| table.iter().find(|(k, _)| k.get_ref() == key).and_then(|(_, v)| v.get_ref().as_str());
    word("name").or_else(|| word("op")).map(str::to_owned)
}

/// Reads one step; `None` when it has no operator (problems are in the table's list).
pub fn read(mut table: Table<'_>) -> Option<StepSpec> {
    let line = table.problems.line_of(&table.span());
    let op = table.string("op");
    let name = table.string("name").or_else(|| op.clone());
    let inputs = inputs(&mut table);
    let boundary = overlap::boundary(&mut table, "boundary");
    let Some(op) = op else {
        if !table.has("op") {
            table.problem("op", "missing; write op = \"gaussian_filter\" or another that `halostream ops` lists");
        }
        return None;
    };
    // Without its operator nobody knows the other keys.
    let Some(info) = operators::find(&op) else {
        table.problem("op", unknown(&op, OPERATORS));
        return None;
    };
    let operator = (info.build)(&mut table);
    info.params.iter().for_each(|param| table.allow(param.name));
    table.finish();
    Some(StepSpec { name: name?, op: info.name, line, inputs, boundary, operator: operator? })
}

fn unknown(op: &str, known: &[&Info]) -> String {
    let hint = nearest(op, known.iter().map(|o| o.name)).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
    let mut names: Vec<&str> = known.iter().take(LISTED).map(|o| o.name).collect();
    if known.len() > LISTED {
        names.push("...");
    }
    format!("there is no operator \"{op}\"{hint} (`halostream ops` lists them: {})", names.join(", "))
}

/// `"slc"`, `["slc", { from = "mask", depth = 1 }]`; empty when absent.
fn inputs(table: &mut Table<'_>) -> Vec<StepInputSpec> {
    let Some(node) = table.get("inputs") else {
        return Vec::new();
    };
    let path = table.key("inputs");
    match node.get_ref() {
        DeValue::Array(list) if list.is_empty() => {
            table.problem("inputs", "the list is empty; leave it out to take the previous step");
            Vec::new()
        }
        DeValue::Array(list) => {
            list.iter().enumerate().filter_map(|(i, entry)| input(table, entry, format!("{path}[{i}]"))).collect()
        }
        _ => input(table, node, path).into_iter().collect(),
    }
}

fn input(table: &Table<'_>, node: &Node<'_>, path: String) -> Option<StepInputSpec> {
    let line = table.problems.line_of(&node.span());
    match node.get_ref() {
        DeValue::String(from) => Some(StepInputSpec { from: from.to_string(), depth: None, boundary: None, line }),
        DeValue::Table(entry) => {
            let mut entry = Table::new(entry, node.span(), path, table.problems.clone());
            let from = entry.string("from");
            if !entry.has("from") {
                entry.problem("from", "missing; write the name of an input or of an earlier step");
            }
            let depth = overlap::depth(&mut entry, "depth");
            let boundary = overlap::boundary(&mut entry, "boundary");
            entry.finish();
            Some(StepInputSpec { from: from?, depth, boundary, line })
        }
        other => {
            let message = format!("expected a name or {{ from, depth, boundary }}, found {}", describe(other));
            table.problems.add(Some(&node.span()), path, message);
            None
        }
    }
}
