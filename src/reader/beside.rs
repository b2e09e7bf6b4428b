//! What lies beside an input in the groups of its sources, and which part of it the input shows: coordinates follow `concat`,
//! `keep` and `select` like the array that they belong to.

use std::sync::Arc;

use super::{Source, SourceError};
use crate::config::select::AxisSelect;
use crate::zarr::coordinates::Group;

/// Which entries of an axis are shown, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Of the whole axis.
    of: u64,
    /// What a list keeps of it, ascending; `None`: all.
    kept: Option<Arc<[u64]>>,
    start: i64,
    step: i64,
    pub len: u64,
}

impl Shown {
    pub fn whole(of: u64) -> Self {
        Self { of, kept: None, start: 0, step: 1, len: of }
    }

    fn new(of: u64, kept: Option<Arc<[u64]>>, part: &AxisSelect) -> Self {
        Self { of, kept, start: part.start, step: part.step, len: part.len }
    }

    pub fn is_whole(&self) -> bool {
        *self == Self::whole(self.of)
    }

    /// The entry of the whole axis behind entry `i`.
    pub fn entry(&self, i: u64) -> u64 {
        let at = (self.start + i as i64 * self.step) as u64;
        self.kept.as_ref().map_or(at, |kept| kept[at as usize])
    }

    /// First entry and the way to the next, where entries lie equally far from each other.
    pub fn stride(&self) -> Option<(i64, i64)> {
        self.kept.is_none().then_some((self.start, self.step))
    }
}

/// An axis of the sources as the input shows it.
#[derive(Clone, Debug)]
pub struct ShownAxis {
    pub name: Option<String>,
    pub shown: Shown,
    /// The input's axis; `None`: an integer in `select` takes one entry.
    pub view: Option<usize>,
    /// Where each source begins on the axis along which they are joined, and where the last one ends.
    pub edges: Option<Arc<[u64]>>,
}

/// The groups of an input's sources.
#[derive(Clone, Debug)]
pub struct Beside {
    /// Of sources that are joined along an axis one each, else that of the first.
    pub groups: Vec<Arc<Group>>,
    /// The array is made of several.
    pub is_joined: bool,
    /// Per axis of a source.
    pub axes: Vec<ShownAxis>,
}

impl Beside {
    /// `None` where some source lies in no group, or they lie in different ones.
    pub(super) fn of(
        sources: &[Arc<dyn Source>],
        axes: &[usize],
        edges: Option<(usize, Arc<[u64]>)>,
        lists: &[(usize, Arc<[u64]>)],
        parts: &[AxisSelect],
        (shape, names): (&[u64], &[Option<String>]),
    ) -> Option<Self> {
        let mut groups: Vec<Arc<Group>> = sources.iter().map(|source| source.meta().group.clone()).collect::<Option<_>>()?;
        if groups.iter().any(|group| group.array != groups[0].array) {
            return None;
        }
        let is_joined = groups.len() > 1;
        groups.truncate(if edges.is_some() { groups.len() } else { 1 });
        let shown = |&axis: &usize| {
            let kept = lists.iter().find(|(listed, _)| *listed == axis).map(|(_, kept)| kept.clone());
            ShownAxis {
                name: names[axis].clone(),
                shown: Shown::new(shape[axis], kept, &parts[axis]),
                view: (!parts[axis].dropped).then(|| parts[..axis].iter().filter(|part| !part.dropped).count()),
                edges: edges.as_ref().filter(|(joined, _)| *joined == axis).map(|(_, edges)| edges.clone()),
            }
        };
        Some(Self { axes: axes.iter().map(shown).collect(), groups, is_joined })
    }

    /// The first group, which names what there is.
    pub fn group(&self) -> &Group {
        &self.groups[0]
    }

    /// The state of what lies there, per group.
    pub fn stamps(&self) -> Result<Vec<String>, SourceError> {
        let stamp = |group: &Arc<Group>| group.stamp().map_err(|(place, error)| SourceError::Io { place, error });
        self.groups.iter().map(stamp).collect()
    }

    /// Most bytes that looking into one of the coordinates takes.
    pub fn peak_bytes(&self) -> u64 {
        let all = self.groups.iter().flat_map(|group| &group.coordinates);
        all.map(crate::zarr::coordinates::Coordinate::peak_bytes).max().unwrap_or(0)
    }
}
