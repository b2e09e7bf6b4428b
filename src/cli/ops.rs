//! `ops`: the operator list, and one operator with its parameters.

use super::{Exit, complain, say};
use crate::config::table::nearest;
use crate::operators::{Info, OPERATORS, find};

pub fn ops(name: Option<&str>) -> Exit {
    let Some(name) = name else {
        let width = OPERATORS.iter().map(|o| o.name.len()).max().unwrap_or(0);
        for op in OPERATORS {
            say(format!("{:<width$}  {:<5} {}", op.name, op.kind, op.summary));
        }
        return Exit::Done;
    };
    match find(name) {
        Some(op) => {
            say(describe(op));
            Exit::Done
        }
        None => {
            let hint =
                nearest(name, OPERATORS.iter().map(|o| o.name)).map(|n| format!("; did you mean \"{n}\"?")).unwrap_or_default();
            complain(format!("there is no operator \"{name}\"{hint} (`halostream ops` lists them)"));
            Exit::Usage
        }
    }
}

/// `ops --markdown`: the text of `docs/operators.md`.
pub fn all() -> Exit {
    say(markdown().trim_end());
    Exit::Done
}

fn markdown() -> String {
    // Bars would end a cell.
    let cell = |text: &str| text.replace('|', "\\|");
    let mut text = "# Operators\n\n\
        Made from the list in `src/operators/mod.rs` by `cargo run -- ops --markdown > docs/operators.md`; a test fails when it is \
        stale. Exactly what an operator computes stands at the head of its file.\n\n\
        | operator | kind | what it gives |\n| --- | --- | --- |\n"
        .to_owned();
    for op in OPERATORS {
        text += &format!("| [`{0}`](#{0}) | {1} | {2} |\n", op.name, op.kind, cell(op.summary));
    }
    for op in OPERATORS {
        text += &format!("\n## {}\n\n{}.\n\n", op.name, op.summary);
        for (key, value) in [
            ("kind", op.kind),
            ("inputs", op.inputs),
            ("outputs", op.outputs),
            ("halo", op.halo),
            ("boundary", op.boundary),
            ("devices", op.devices),
            ("cost", op.cost),
            ("source", op.source),
        ] {
            text += &format!("- {key}: {value}\n");
        }
        if !op.params.is_empty() {
            text += "\n| parameter | value | default | |\n| --- | --- | --- | --- |\n";
        }
        for p in op.params {
            let default = if p.default.is_empty() { "required" } else { p.default };
            text += &format!("| `{}` | {} | {} | {} |\n", p.name, cell(p.kind), cell(default), cell(p.doc));
        }
    }
    text
}

fn describe(op: &Info) -> String {
    let mut text = format!("{}: {}\n\n", op.name, op.summary);
    for (key, value) in [
        ("kind", op.kind),
        ("inputs", op.inputs),
        ("outputs", op.outputs),
        ("halo", op.halo),
        ("boundary", op.boundary),
        ("devices", op.devices),
    ] {
        text += &format!("  {key:<9} {value}\n");
    }
    if !op.params.is_empty() {
        text += "\nparameters\n";
    }
    for p in op.params {
        let default = if p.default.is_empty() { "required".to_owned() } else { format!("default {}", p.default) };
        text += &format!("  {} ({}, {default})\n      {}\n", p.name, p.kind, p.doc);
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_is_that_of_the_list() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operators.md");
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(found == markdown(), "docs/operators.md is stale: cargo run -- ops --markdown > docs/operators.md");
    }

    #[test]
    fn operators_are_sorted_and_say_what_they_are() {
        assert!(OPERATORS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for op in OPERATORS {
            for text in [op.summary, op.kind, op.inputs, op.outputs, op.halo, op.boundary, op.devices, op.cost, op.source] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{}", op.name);
            }
            assert!(op.params.iter().all(|p| !p.doc.is_empty()), "{}", op.name);
        }
    }
}
