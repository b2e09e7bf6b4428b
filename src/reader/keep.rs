//! The entries of an axis that a list names: a line each, by index or by name. They are taken in the order of the array, as
//! `plink --keep` does, whatever the order of the lines.
//!
//! The list is held as its text and 12 bytes a line; names are looked up as they pass by, so what is held does not depend on
//! how many names an axis has.

use std::path::Path;

use super::OpenError;
use super::file::InputFile;
use crate::config::{KeepBy, KeepSpec};

/// Larger files are no lists of entries.
const MOST_BYTES: u64 = 16 << 20;
const MOST_LINES: usize = 1 << 20;

/// Looks up names: calls back with the number and name of each entry, says where names come from.
pub type Names<'n> = dyn Fn(&mut dyn FnMut(u64, &str)) -> Result<Option<String>, OpenError> + 'n;

/// A list of entries. Lines are sorted by their text.
pub struct List<'p> {
    path: &'p Path,
    text: String,
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
struct Line {
    /// From 1 up.
    number: u32,
    start: u32,
    len: u32,
}

impl<'p> List<'p> {
    pub fn read(path: &'p Path) -> Result<Self, OpenError> {
        let refused = |reason: String| OpenError::refused(path.display().to_string(), reason);
        let file = InputFile::open(path)?;
        if file.size() > MOST_BYTES {
            return Err(refused(format!("holds {} bytes, a list of entries has at most {MOST_BYTES}", file.size())));
        }
        let bytes = file.head(MOST_BYTES as usize)?;
        let text = String::from_utf8(bytes).map_err(|_| refused("is no text in UTF-8".to_owned()))?;
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let entry = line.trim();
            if !entry.is_empty() {
                let start = (entry.as_ptr() as usize - text.as_ptr() as usize) as u32;
                lines.push(Line { number, start, len: entry.len() as u32 });
            }
            if lines.len() > MOST_LINES {
                return Err(refused(format!("has more than {MOST_LINES} lines")));
            }
        }
        if lines.is_empty() {
            return Err(refused("names no entries: write one a line".to_owned()));
        }
        let mut list = Self { path, text, lines: Vec::new() };
        lines.sort_unstable_by(|a, b| list.entry(a).cmp(list.entry(b)).then(a.number.cmp(&b.number)));
        list.lines = lines;
        match list.lines.windows(2).find(|pair| list.entry(&pair[0]) == list.entry(&pair[1])) {
            Some(pair) => Err(list.wrong(&pair[1], &format!("stands in line {} already", pair[0].number))),
            None => Ok(list),
        }
    }

    fn entry(&self, line: &Line) -> &str {
        &self.text[line.start as usize..(line.start + line.len) as usize]
    }

    fn wrong(&self, line: &Line, reason: &str) -> OpenError {
        const SHOWN: usize = 80;
        let mut entry: String = self.entry(line).chars().take(SHOWN).collect();
        if entry.len() < line.len as usize {
            entry.push_str("...");
        }
        OpenError::refused(self.path.display().to_string(), format!("line {}: {entry:?} {reason}", line.number))
    }

    /// The entries as indices of an axis of `len`, in ascending order.
    fn indices(&self, len: u64) -> Result<Vec<u64>, OpenError> {
        let mut found = Vec::with_capacity(self.lines.len());
        for line in &self.lines {
            match self.entry(line).parse::<u64>() {
                Ok(index) if index < len => found.push((index, line)),
                Ok(_) => return Err(self.wrong(line, &format!("is beyond the axis, which has {len} entries from 0 on"))),
                Err(_) => return Err(self.wrong(line, "is no index, a number from 0 up")),
            }
        }
        found.sort_unstable_by_key(|(index, line)| (*index, line.number));
        match found.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            // "7" and "07".
            Some(pair) => Err(self.wrong(pair[1].1, &format!("is the entry of line {} again", pair[0].1.number))),
            None => Ok(found.into_iter().map(|(index, _)| index).collect()),
        }
    }

    /// The entries by their names; `None` where the axis has none.
    fn named(&self, names: &Names<'_>) -> Result<Option<Vec<u64>>, OpenError> {
        const NOBODY: u64 = u64::MAX;
        let mut numbers = vec![NOBODY; self.lines.len()];
        let mut twice = None;
        let place = names(&mut |number, name| {
            if let Ok(at) = self.lines.binary_search_by(|line| self.entry(line).cmp(name)) {
                if numbers[at] != NOBODY && numbers[at] != number {
                    twice.get_or_insert((at, numbers[at], number));
                }
                numbers[at] = number;
            }
        })?;
        let Some(place) = place else { return Ok(None) };
        if let Some((at, first, second)) = twice {
            let reason = format!("is the name of several entries in {place}, such as {first} and {second}; use indices");
            return Err(self.wrong(&self.lines[at], &reason));
        }
        let unknown = (0..numbers.len()).filter(|&at| numbers[at] == NOBODY);
        if let Some(at) = unknown.clone().min_by_key(|&at| self.lines[at].number) {
            let more = match unknown.count() {
                1 => String::new(),
                n => format!(", nor are {} others", n - 1),
            };
            return Err(self.wrong(&self.lines[at], &format!("is not in {place}{more}")));
        }
        let mut found: Vec<(u64, usize)> = numbers.into_iter().zip(0..).collect();
        found.sort_unstable_by_key(|(number, at)| (*number, self.lines[*at].number));
        match found.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => {
                let first = self.lines[pair[0].1].number;
                Err(self.wrong(&self.lines[pair[1].1], &format!("is the entry of line {first} again")))
            }
            None => Ok(Some(found.into_iter().map(|(number, _)| number).collect())),
        }
    }

    /// The kept entries of an axis of `len`, ascending.
    pub fn resolve(&self, spec: &KeepSpec, len: u64, names: &Names<'_>) -> Result<Vec<u64>, OpenError> {
        let without = |found: Option<Vec<u64>>| {
            found.ok_or_else(|| {
                let reason = format!("holds names, and nothing beside the array names the entries of axis {}", spec.axis);
                OpenError::refused(self.path.display().to_string(), reason + "; use indices")
            })
        };
        let are_numbers = self.lines.iter().all(|line| self.entry(line).bytes().all(|b| b.is_ascii_digit()));
        match (spec.by, are_numbers) {
            (Some(KeepBy::Index), _) => self.indices(len),
            (Some(KeepBy::Name), _) | (None, false) => without(self.named(names)?),
            // Names may be numbers, too: what could mean either is not guessed at.
            (None, true) => match (self.indices(len), self.named(names)) {
                (Ok(indices), Ok(Some(named))) if indices != named => {
                    let reason = "holds numbers that are indices as well as names, of other entries; say by = \"index\" or \
                                  by = \"name\" beside axis and file";
                    Err(OpenError::refused(self.path.display().to_string(), reason))
                }
                (Err(_), Ok(Some(named))) => Ok(named),
                (indices, _) => indices,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::zarr::store::tests::Scratch;

    /// What a list keeps of an axis whose entries have these names.
    fn kept(text: &str, by: Option<KeepBy>, len: u64, names: Option<&[&str]>) -> Result<Vec<u64>, String> {
        let scratch = Scratch::new();
        let file = scratch.0.join("keep.txt");
        std::fs::write(&file, text).unwrap();
        let spec = KeepSpec { axis: 1, file: PathBuf::new(), by };
        let each = |visit: &mut dyn FnMut(u64, &str)| {
            names.into_iter().flatten().enumerate().for_each(|(i, name)| visit(i as u64, name));
            Ok(names.map(|_| "names".to_owned()))
        };
        let list = List::read(&file).map_err(|e| e.to_string())?;
        list.resolve(&spec, len, &each).map_err(|e| e.to_string())
    }

    #[test]
    fn entries_are_kept_in_the_order_of_the_array() {
        let names = Some(&["a", "b b", "c", "d"][..]);
        assert_eq!(kept("3\n\n 0 \r\n2\n", None, 4, None), Ok(vec![0, 2, 3]));
        assert_eq!(kept("d\nb b\n", None, 4, names), Ok(vec![1, 3]));
        let numbers = Some(&["7", "0", "9"][..]);
        assert_eq!(kept("9\n7", None, 3, numbers), Ok(vec![0, 2]));
        assert_eq!(kept("0", Some(KeepBy::Index), 3, numbers), Ok(vec![0]));
        assert_eq!(kept("0", Some(KeepBy::Name), 3, numbers), Ok(vec![1]));
        // Indices and names that say the same.
        assert_eq!(kept("1\n0", None, 2, Some(&["0", "1"])), Ok(vec![0, 1]));
    }

    #[test]
    fn lists_that_cannot_be_followed() {
        let names = Some(&["a", "b", "a"][..]);
        let numbers = Some(&["2", "0", "1"][..]);
        for (text, by, names, words) in [
            ("", None, names, "names no entries"),
            (" \n\n", None, names, "names no entries"),
            ("b\nx\nb", None, names, "line 3: \"b\" stands in line 1 already"),
            ("b\nx\ny", None, names, "line 2: \"x\" is not in names, nor are 1 others"),
            ("b\nz", None, names, "line 2: \"z\" is not in names"),
            ("a", None, names, "several entries in names, such as 0 and 2"),
            ("0\n3", None, names, "line 2: \"3\" is beyond the axis, which has 3 entries"),
            ("7\n007", Some(KeepBy::Index), None, "beyond"),
            ("1\n01", None, None, "line 2: \"01\" is the entry of line 1 again"),
            ("1\nx", Some(KeepBy::Index), None, "line 2: \"x\" is no index"),
            ("x", None, None, "nothing beside the array names the entries of axis 1"),
            ("0\n1", None, Some(&["1", "2", "0"][..]), "indices as well as names"),
            ("99999999999999999999", None, numbers, "is no index"),
        ] {
            let error = kept(text, by, 3, names).unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        let error = kept(&"x\n".repeat(MOST_LINES + 1), None, 3, names).unwrap_err();
        assert!(error.contains("more than 1048576 lines"), "{error}");
        let error = kept(&"x".repeat(MOST_BYTES as usize + 1), None, 3, names).unwrap_err();
        assert!(error.contains("at most 16777216"), "{error}");
        let error = kept(&"x".repeat(100), None, 3, names).unwrap_err();
        assert!(error.contains(&format!("{}...", "x".repeat(80))), "{error}");
    }
}
