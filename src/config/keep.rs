//! `keep = [{ axis = 1, file = "keep.txt" }]`: which entries of an axis a job takes.

use std::path::{Path, PathBuf};

use toml::de::DeValue;

use super::resolve_path;
use super::table::{Table, describe};

/// The entries of one axis that are kept, in the order of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepSpec {
    /// Negative counts from the end.
    pub axis: i64,
    /// One entry a line.
    pub file: PathBuf,
    /// `None`: as the lines look.
    pub by: Option<KeepBy>,
}

/// What the lines of a list are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepBy {
    Index,
    Name,
}

/// Reads the list; problems are in the table's list.
pub fn read(table: &mut Table<'_>, folder: &Path) -> Vec<KeepSpec> {
    let Some(node) = table.get("keep") else { return Vec::new() };
    let DeValue::Array(list) = node.get_ref() else {
        let found = describe(node.get_ref());
        table.problem("keep", format!("expected a list such as [{{ axis = 1, file = \"keep.txt\" }}], found {found}"));
        return Vec::new();
    };
    let mut specs: Vec<KeepSpec> = Vec::new();
    for (i, node) in list.iter().enumerate() {
        let name = format!("{}[{i}]", table.key("keep"));
        let DeValue::Table(entry) = node.get_ref() else {
            let message = format!("expected {{ axis = 1, file = \"keep.txt\" }}, found {}", describe(node.get_ref()));
            table.problems.add(Some(&node.span()), name, message);
            continue;
        };
        let mut entry = Table::new(entry, node.span(), name, table.problems.clone());
        let (axis, file) = (entry.integer("axis"), entry.string("file"));
        let by = entry.one_of("by", &["index", "name"]).map(|by| if by == "index" { KeepBy::Index } else { KeepBy::Name });
        for (key, example) in [("axis", "axis = 1"), ("file", "file = \"keep.txt\"")] {
            if !entry.has(key) {
                entry.problem(key, format!("missing; write {example}"));
            }
        }
        if file.as_deref() == Some("") {
            entry.problem("file", "the path is empty");
        } else if axis.is_some_and(|axis| specs.iter().any(|s| s.axis == axis)) {
            entry.problem("axis", "is in the list twice; put both lists into one file");
        } else if let (Some(axis), Some(file)) = (axis, file) {
            specs.push(KeepSpec { axis, file: resolve_path(folder, &file), by });
        }
        entry.finish();
    }
    if list.is_empty() {
        table.problem("keep", "the list is empty; leave it out to take all");
    }
    specs
}
