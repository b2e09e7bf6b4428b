//! A TOML table with line numbers: typed reads that collect problems instead of stopping at the first.
//!
//! Keys that nobody read are unknown keys; [`Table::finish`] reports them with the nearest known one.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The place of a value that the command line gave (`--set`): no line of the file.
pub const SET_SPAN: Range<usize> = usize::MAX..usize::MAX;

/// A file that is something else than a job has a problem in every line: those after this many are only counted.
pub const MOST_PROBLEMS: usize = 100;

/// One thing wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// 1-based; 0 when the place is not a line of the file (a `--set`, a missing table).
    pub line: usize,
    /// Dotted key: `step[1].half_window`.
    pub key: String,
    pub message: String,
}

impl Problem {
    /// Stands for `count` problems that are not listed.
    pub fn more(count: usize) -> Option<Self> {
        let message = format!("{count} more problems are not listed");
        (count > 0).then_some(Self { line: 0, key: String::new(), message })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// The text of a file, its folder, and what is wrong with it, shared by all its tables.
#[derive(Clone)]
pub struct Problems {
    text: Rc<str>,
    /// Where relative paths start.
    folder: Rc<Path>,
    list: Rc<RefCell<Vec<Problem>>>,
    /// Problems beyond [`MOST_PROBLEMS`].
    more: Rc<Cell<usize>>,
}

impl Problems {
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), folder: Path::new("").into(), list: Rc::default(), more: Rc::default() }
    }

    /// The same, for a file in this folder.
    pub fn within(self, folder: &Path) -> Self {
        Self { folder: folder.into(), ..self }
    }

    /// The folder that relative paths in the file start from.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// 1-based; 0 for a value that came from `--set`.
    pub fn line_of(&self, span: &Range<usize>) -> usize {
        if *span == SET_SPAN {
            return 0;
        }
        let end = span.start.min(self.text.len());
        self.text.as_bytes()[..end].iter().filter(|b| **b == b'\n').count() + 1
    }

    pub fn add(&self, span: Option<&Range<usize>>, key: impl Into<String>, message: impl Into<String>) {
        // Finding a line reads the text up to it.
        let line = if self.is_full() { 0 } else { span.map_or(0, |s| self.line_of(s)) };
        let mut key = key.into();
        if span == Some(&SET_SPAN) {
            key.insert_str(0, "--set ");
        }
        self.add_at(line, key, message);
    }

    fn is_full(&self) -> bool {
        self.list.borrow().len() >= MOST_PROBLEMS
    }

    /// A problem whose line is known already; 0 for what came from `--set`.
    pub fn add_at(&self, line: usize, key: impl Into<String>, message: impl Into<String>) {
        if self.is_full() {
            return self.more.set(self.more.get() + 1);
        }
        self.list.borrow_mut().push(Problem { line, key: key.into(), message: message.into() });
    }

    /// All of them, by line; the first [`MOST_PROBLEMS`] that were found, then how many more there are.
    pub fn take(&self) -> Vec<Problem> {
        let mut list = self.list.take();
        list.sort_by_key(|p| p.line);
        list.extend(Problem::more(self.more.take()));
        list
    }

    pub fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }
}

/// The nearest of `known` to `word`, if near enough to be a slip.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(&word.to_lowercase(), k), k))
        .filter(|(distance, k)| *distance <= (k.len().max(word.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, k)| k)
}

/// A value of a table, with its place.
pub type Node<'t> = Spanned<DeValue<'t>>;

/// A table being read.
pub struct Table<'t> {
    table: &'t DeTable<'t>,
    /// Dotted path for messages.
    path: String,
    span: Range<usize>,
    known: Vec<&'static str>,
    pub problems: Problems,
}

impl<'t> Table<'t> {
    pub fn new(table: &'t DeTable<'t>, span: Range<usize>, path: impl Into<String>, problems: Problems) -> Self {
        Self { table, path: path.into(), span, known: Vec::new(), problems }
    }

    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// `path.key`
    pub fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The keys as written.
    pub fn keys(&self) -> impl Iterator<Item = &'t str> + use<'t> {
        self.table.keys().map(|k| k.get_ref().as_ref())
    }

    pub fn has(&self, key: &str) -> bool {
        self.table.keys().any(|k| k.get_ref() == key)
    }

    /// Marks a key as known without reading it (another reader does).
    pub fn allow(&mut self, key: &'static str) {
        self.known.push(key);
    }

    /// The raw value; the key counts as known from now on.
    pub fn get(&mut self, key: &'static str) -> Option<&'t Node<'t>> {
        self.known.push(key);
        self.lookup(key)
    }

    /// The raw value of a key that only the file knows (a table of names).
    pub fn lookup(&self, key: &str) -> Option<&'t Node<'t>> {
        self.table.iter().find(|(k, _)| k.get_ref() == key).map(|(_, v)| v)
    }

    /// Reports a problem at a key of this table (or at the table when the key is absent).
    pub fn problem(&self, key: &str, message: impl Into<String>) {
        let span = self.lookup(key).map(Spanned::span).unwrap_or_else(|| self.span.clone());
        self.problems.add(Some(&span), self.key(key), message);
    }

    fn typed<T>(&mut self, key: &'static str, expected: &str, read: impl Fn(&DeValue<'t>) -> Option<T>) -> Option<T> {
        let node = self.get(key)?;
        let value = read(node.get_ref());
        if value.is_none() {
            self.problem(key, format!("expected {expected}, found {}", describe(node.get_ref())));
        }
        value
    }

    pub fn string(&mut self, key: &'static str) -> Option<String> {
        self.typed(key, "a string", |v| v.as_str().map(str::to_owned))
    }

    pub fn bool(&mut self, key: &'static str) -> Option<bool> {
        self.typed(key, "true or false", |v| v.as_bool())
    }

    pub fn integer(&mut self, key: &'static str) -> Option<i64> {
        self.typed(key, "an integer", integer)
    }

    /// An integer from 0 up.
    pub fn count(&mut self, key: &'static str) -> Option<u64> {
        self.typed(key, "an integer from 0 up", |v| integer(v)?.try_into().ok())
    }

    /// A number, integer or float (`nan` and `inf` too).
    pub fn number(&mut self, key: &'static str) -> Option<f64> {
        self.typed(key, "a number", number)
    }

    /// One of the words; anything else is a problem that lists them.
    pub fn one_of(&mut self, key: &'static str, words: &[&'static str]) -> Option<&'static str> {
        let text = self.string(key)?;
        let found = words.iter().find(|w| **w == text).copied();
        if found.is_none() {
            let hint = nearest(&text, words.iter().copied()).map(|w| format!("; did you mean \"{w}\"?")).unwrap_or_default();
            let list = words.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(", ");
            self.problem(key, format!("\"{text}\" is none of {list}{hint}"));
        }
        found
    }

    /// A dtype's name or typestr.
    pub fn dtype(&mut self, key: &'static str) -> Option<crate::array::DType> {
        let text = self.string(key)?;
        let dtype = crate::array::DType::parse(&text);
        if dtype.is_none() {
            let names = crate::array::DType::ALL.map(|d| d.name());
            let hint = nearest(&text, names).map(|w| format!("; did you mean \"{w}\"?")).unwrap_or_default();
            self.problem(key, format!("\"{text}\" is not a dtype ({}){hint}", names.join(", ")));
        }
        dtype
    }

    /// An integer or a list of integers.
    pub fn integers(&mut self, key: &'static str) -> Option<OneOrMany<i64>> {
        self.typed(key, "an integer or a list of integers", |v| one_or_many(v, integer))
    }

    /// An integer from 0 up, or a list of them.
    pub fn counts(&mut self, key: &'static str) -> Option<OneOrMany<u64>> {
        self.typed(key, "an integer from 0 up or a list of them", |v| one_or_many(v, |v| integer(v)?.try_into().ok()))
    }

    /// A number or a list of numbers.
    pub fn numbers(&mut self, key: &'static str) -> Option<OneOrMany<f64>> {
        self.typed(key, "a number or a list of numbers", |v| one_or_many(v, number))
    }

    /// A list of strings.
    pub fn strings(&mut self, key: &'static str) -> Option<Vec<String>> {
        self.typed(key, "a list of strings", |v| v.as_array()?.iter().map(|v| v.get_ref().as_str().map(str::to_owned)).collect())
    }

    /// Any value, as JSON (parameters handed to a child). What JSON cannot say is a problem.
    pub fn json(&mut self, key: &'static str) -> Option<Json> {
        let node = self.get(key)?;
        if let Some((span, message)) = not_json(node) {
            self.problems.add(Some(&span), self.key(key), message);
            return None;
        }
        Some(to_json(node.get_ref()))
    }

    /// A size: `"2GiB"`, or an integer of bytes.
    pub fn bytes(&mut self, key: &'static str) -> Option<u64> {
        let node = self.get(key)?;
        let parsed = match node.get_ref() {
            DeValue::String(text) => super::units::parse_bytes(text),
            value => integer(value)
                .and_then(|bytes| u64::try_from(bytes).ok())
                .ok_or_else(|| format!("expected a size such as \"2GiB\", found {}", describe(value))),
        };
        parsed.map_err(|message| self.problem(key, message)).ok()
    }

    /// A duration: `"30s"`.
    pub fn duration(&mut self, key: &'static str) -> Option<std::time::Duration> {
        let text = self.string(key)?;
        super::units::parse_duration(&text).map_err(|message| self.problem(key, message)).ok()
    }

    /// A sub-table.
    pub fn table(&mut self, key: &'static str) -> Option<Table<'t>> {
        let node = self.get(key)?;
        match node.get_ref() {
            DeValue::Table(table) => Some(Table::new(table, node.span(), self.key(key), self.problems.clone())),
            other => {
                self.problem(key, format!("expected a table, found {}", describe(other)));
                None
            }
        }
    }

    /// Reports every key that nobody asked for.
    pub fn finish(mut self) {
        let mut seen = Vec::new();
        self.known.retain(|k| {
            !seen.contains(k) && {
                seen.push(k);
                true
            }
        });
        for (key, _) in self.table.iter() {
            let word = key.get_ref().as_ref();
            if self.known.contains(&word) {
                continue;
            }
            let hint = match nearest(word, self.known.iter().copied()) {
                // Before any look-alike: who writes them means scipy's.
                _ if matches!(word, "mode" | "cval") && self.known.contains(&"boundary") => {
                    "unknown key; scipy's mode and cval are one key here: `boundary`".to_owned()
                }
                Some(near) => format!("unknown key; did you mean `{near}`?"),
                None => format!("unknown key; known are {}", self.known.join(", ")),
            };
            self.problems.add(Some(&key.span()), self.key(word), hint);
        }
    }
}

/// A parameter that is one value for all axes, or one per axis.
#[derive(Clone, Debug, PartialEq)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T: Clone> OneOrMany<T> {
    /// One value per axis. A list of another length than the rank is an error.
    pub fn expand(&self, rank: usize, key: &str) -> Result<Vec<T>, String> {
        match self {
            OneOrMany::One(v) => Ok(vec![v.clone(); rank]),
            OneOrMany::Many(list) if list.len() == rank => Ok(list.clone()),
            OneOrMany::Many(list) => Err(format!("{key} has {} entries, the array has {rank} axes", list.len())),
        }
    }
}

pub fn integer(value: &DeValue<'_>) -> Option<i64> {
    let i = value.as_integer()?;
    i64::from_str_radix(i.as_str(), i.radix()).ok()
}

pub fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(_) => integer(value).map(|i| i as f64),
        // 1e999 is no infinity that anybody asked for.
        DeValue::Float(f) => f.as_str().replace('_', "").parse().ok().filter(|v: &f64| v.is_finite() || !is_decimal(f.as_str())),
        _ => None,
    }
}

fn is_decimal(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit())
}

/// The first value inside that JSON has no form for.
fn not_json(node: &Node<'_>) -> Option<(Range<usize>, String)> {
    match node.get_ref() {
        DeValue::Integer(i) if integer(node.get_ref()).is_none() => {
            Some((node.span(), format!("the integer {} does not fit 64 bits", i.as_str())))
        }
        DeValue::Float(f) if !number(node.get_ref()).is_some_and(f64::is_finite) => {
            Some((node.span(), format!("{} has no form in JSON; hand it over as a string", f.as_str())))
        }
        DeValue::Array(list) => list.iter().find_map(not_json),
        DeValue::Table(table) => table.iter().find_map(|(_, v)| not_json(v)),
        _ => None,
    }
}

fn one_or_many<'v, T>(value: &DeValue<'v>, read: impl Fn(&DeValue<'v>) -> Option<T>) -> Option<OneOrMany<T>> {
    match value {
        DeValue::Array(list) => list.iter().map(|v| read(v.get_ref())).collect::<Option<_>>().map(OneOrMany::Many),
        one => read(one).map(OneOrMany::One),
    }
}

/// A value in a message: `the string "abc"`.
pub fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(s) => format!("the string {s:?}"),
        DeValue::Integer(i) => format!("the integer {}", i.as_str()),
        DeValue::Float(f) => format!("the number {}", f.as_str()),
        DeValue::Boolean(b) => b.to_string(),
        DeValue::Datetime(d) => format!("the date {d}"),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

pub fn to_json(value: &DeValue<'_>) -> Json {
    match value {
        DeValue::String(s) => Json::String(s.to_string()),
        DeValue::Integer(_) => integer(value).map_or(Json::Null, Json::from),
        DeValue::Float(_) => number(value).and_then(serde_json::Number::from_f64).map_or(Json::Null, Json::Number),
        DeValue::Boolean(b) => Json::Bool(*b),
        DeValue::Datetime(d) => Json::String(d.to_string()),
        DeValue::Array(list) => Json::Array(list.iter().map(|v| to_json(v.get_ref())).collect()),
        DeValue::Table(table) => {
            Json::Object(table.iter().map(|(k, v)| (k.get_ref().to_string(), to_json(v.get_ref()))).collect())
        }
    }
}
