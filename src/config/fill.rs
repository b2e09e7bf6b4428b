//! Placeholders such as `{input}` in the strings of a parsed file.
//!
//! They are filled into the tree and never into the text: a file called `"]\n[engine]` stays a name. A value is taken as it
//! stands, also when it looks like `${VAR}` or, in a string that is a glob, like a part of the glob.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::table::SET_SPAN;

/// What arrived can be called by these in a job.
pub const PLACEHOLDERS: [&str; 6] = ["input", "output", "name", "stem", "relpath", "watch"];

/// Values of placeholders.
#[derive(Clone, Debug, Default)]
pub struct Filling(Vec<(&'static str, String)>);

impl Filling {
    pub fn new(values: Vec<(&'static str, String)>) -> Self {
        Self(values)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str())
    }

    /// The text with its placeholders filled; braces around anything else stay.
    pub fn text(&self, text: &str) -> String {
        self.replace(text, |value| value.to_owned())
    }

    fn replace(&self, text: &str, quoted: impl Fn(&str) -> String) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let value = from.find('}').and_then(|end| Some((self.value(&from[1..end])?, end)));
            match value {
                // `${name}` is a variable of the environment.
                Some((value, end)) if !before.ends_with('$') => {
                    out.push_str(&quoted(value));
                    rest = &from[end + 1..];
                }
                _ => {
                    out.push('{');
                    rest = &from[1..];
                }
            }
        }
        out + rest
    }

    /// Fills every string below `table`, before `${VAR}` is expanded.
    pub fn apply(&self, table: &mut DeTable<'_>) {
        for (_, node) in table.iter_mut() {
            self.apply_value(node.get_mut());
        }
    }

    fn apply_value(&self, value: &mut DeValue<'_>) {
        match value {
            DeValue::String(text) if text.contains('{') => {
                let is_glob = text.contains(['*', '?', '[']);
                let filled = self.replace(text, |value| {
                    let value = if is_glob { glob::Pattern::escape(value) } else { value.to_owned() };
                    value.replace("${", "$${")
                });
                *text = Cow::Owned(filled);
            }
            DeValue::Array(list) => list.iter_mut().for_each(|entry| self.apply_value(entry.get_mut())),
            DeValue::Table(table) => self.apply(table),
            _ => {}
        }
    }
}

/// The names in braces of a text, without variables of the environment.
pub fn names(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('{') {
        if let Some(end) = text[at..].find('}')
            && !text[..at].ends_with('$')
        {
            found.push(&text[at + 1..at + end]);
        }
    }
    found
}

/// Every input of a job that does not say what a missing chunk means gets `missing = "error"`: what arrives on its own
/// has nobody who looks whether it is whole. It becomes part of the recorded job.
pub(super) fn expect_chunks(root: &mut DeTable<'_>) {
    let set = |node: &mut Spanned<DeValue<'_>>| {
        if let DeValue::Table(table) = node.get_mut()
            && !table.keys().any(|k| k.get_ref() == "missing")
        {
            let value = DeValue::String(Cow::Borrowed("error"));
            table.insert(Spanned::new(SET_SPAN, Cow::Borrowed("missing")), Spanned::new(SET_SPAN, value));
        }
    };
    for (key, node) in root.iter_mut() {
        match (key.get_ref().as_ref(), node.get_mut()) {
            ("input", _) => set(node),
            ("inputs", DeValue::Table(table)) => table.iter_mut().for_each(|(_, node)| set(node)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{InputPlace, Missing, job};
    use std::path::Path;

    fn filling(input: &str) -> Filling {
        Filling::new(vec![("input", input.to_owned()), ("stem", "a".to_owned())])
    }

    #[test]
    fn names_that_look_like_more_than_names() {
        let text = "[input]\npath = '{input}'\n[output]\npath = 'out/{stem}-{other}-$${stem}.zarr'";
        for name in ["/in/a \"quoted\"\nname.zarr", "/in/${HOME}.zarr", "/in/{stem}.zarr", "/in/'\n[engine]\nworkers = 1.zarr"] {
            let job =
                job::parse_filled(text, Path::new("."), &[], Some(&filling(name)), &|_| None).unwrap_or_else(|p| panic!("{p:?}"));
            // With a bracket in it, it is a name before it is a pattern.
            let is_name = match &job.inputs[0].from {
                InputPlace::Paths(paths) => paths[..] == [name],
                InputPlace::Glob(text) => text == name && name.contains('['),
                InputPlace::Sample(_) | InputPlace::Command(_) => false,
            };
            assert!(is_name, "{:?}", job.inputs[0].from);
            assert_eq!(job.inputs[0].missing, Missing::Error);
            assert_eq!(job.outputs[0].path, Path::new("out/a-{other}-${stem}.zarr"));
            assert_eq!(job.engine.workers, None);
        }
        let glob = "[input]\npath = '{input}/*.zarr'\nstack = 0\nmissing = 'fill'\n[output]\npath = 'o.zarr'";
        let job = job::parse_filled(glob, Path::new("."), &[], Some(&filling("/in/a[1]")), &|_| None).unwrap();
        assert!(matches!(&job.inputs[0].from, InputPlace::Glob(p) if p == "/in/a[[]1[]]/*.zarr"), "{:?}", job.inputs[0].from);
        assert_eq!(job.inputs[0].missing, Missing::Fill);
    }

    #[test]
    fn placeholders_of_a_text() {
        assert_eq!(names("out/{stem}.${HOME}.{x}.{"), ["stem", "x"]);
        assert_eq!(filling("i").text("{input}{}{stem"), "i{}{stem");
    }
}
