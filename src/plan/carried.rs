//! What is carried to an output beside its arrays, decided ([`super::coordinates`]) and not yet written
//! ([`crate::writer::coordinates`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::reader::Source;
use crate::reader::beside::Shown;
use crate::writer::OutputLayout;
use crate::zarr::coordinates::Coordinate;
use crate::zarr::strings::Strings;

/// What one output holds beside its arrays.
#[derive(Clone, Default)]
pub struct Surroundings {
    /// Attributes of its groups, by path.
    pub groups: BTreeMap<String, Map<String, Value>>,
    pub coordinates: Vec<Carried>,
    /// Its metadata lies in one document, too.
    pub is_consolidated: bool,
}

impl Surroundings {
    /// Names of the coordinates by what is done to them: `lat, lon copied, time sliced`.
    pub fn describe(&self) -> Option<String> {
        let mut by_how: BTreeMap<How, Vec<&str>> = BTreeMap::new();
        self.coordinates.iter().for_each(|carried| by_how.entry(carried.how).or_default().push(&carried.name));
        let parts: Vec<String> = by_how.iter().map(|(how, names)| format!("{} {}", names.join(", "), how.name())).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// A coordinate of an output.
#[derive(Clone)]
pub struct Carried {
    pub name: String,
    /// In the output.
    pub path: String,
    pub how: How,
    pub content: Content,
    /// Of its own, in the output.
    pub dimensions: Vec<(Option<String>, u64)>,
    /// What it was before: the same name twice must mean the same.
    pub key: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    Copied,
    Sliced,
    Joined,
}

impl How {
    pub fn name(self) -> &'static str {
        match self {
            How::Copied => "copied",
            How::Sliced => "sliced",
            How::Joined => "joined",
        }
    }
}

#[derive(Clone)]
pub enum Content {
    /// The objects of an array, as they are stored. Numbers are looked at before, so that no torn chunk is carried on.
    Stored { root: PathBuf, coordinate: Box<Coordinate>, numbers: Option<Arc<dyn Source>> },
    /// Cells of one or more arrays, written anew.
    Cut { cells: Cells, cuts: Vec<Cut>, layout: Box<OutputLayout> },
}

/// Arrays that cells are taken from, one for each that is joined.
#[derive(Clone)]
pub enum Cells {
    Numbers(Vec<Arc<dyn Source>>),
    /// With their stores and paths. They are written like bytes of their own number.
    Strings(Vec<(PathBuf, String, Strings)>),
}

/// What is taken along an axis of a coordinate.
#[derive(Clone, Debug)]
pub struct Cut {
    pub shown: Shown,
    /// The axis is there in the output; else one entry of it is taken.
    pub is_kept: bool,
    /// Where each source begins, and the last one ends.
    pub edges: Option<Arc<[u64]>>,
}

impl Cut {
    pub fn whole(len: u64) -> Self {
        Self { shown: Shown::whole(len), is_kept: true, edges: None }
    }

    pub fn is_whole(&self) -> bool {
        self.is_kept && self.edges.is_none() && self.shown.is_whole()
    }

    /// The source behind entry `i`, and the entry in it.
    pub fn entry(&self, i: u64) -> (usize, u64) {
        let entry = self.shown.entry(i);
        let Some(edges) = &self.edges else { return (0, entry) };
        let source = edges.partition_point(|edge| *edge <= entry).saturating_sub(1);
        (source, entry - edges[source])
    }
}
