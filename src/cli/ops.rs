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
