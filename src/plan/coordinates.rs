//! What an output's group holds beside its arrays, decided from what lies beside the input: coordinates of the axes that are
//! carried, cut as `select` and `keep` cut the array and joined as `concat` joins it, and the attributes of the groups.
//!
//! A coordinate goes where its axes go: it is dropped with an axis that is reduced, or of which one cell stands for several
//! entries. What is not cut is copied as it is stored, which is exact for any data type; what is cut is read, and must hold
//! numbers or strings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::OutputPlan;
use super::carried::{Carried, Cells, Content, Cut, How, Surroundings};
use super::graph::Graph;
use super::origin::Origin;
use crate::array::DType;
use crate::engine::record::ATTRIBUTE;
use crate::reader::beside::Beside;
use crate::reader::input::InputArray;
use crate::reader::{OpenError, Source, zarr};
use crate::writer::OutputLayout;
use crate::writer::npy::is_npy;
use crate::zarr::coordinates::{Coordinate, Values, grid_mappings, words};
use crate::zarr::metadata::Header;
use crate::zarr::multiscales::{self, Level};
use crate::zarr::seen::Seen;
use crate::zarr::{fill, geotransform};

/// Attributes that must agree where coordinates are joined: in what their values are told.
const UNITS: [&str; 6] = ["units", "calendar", "scale_factor", "add_offset", "_FillValue", "_Unsigned"];

/// Decides for every output by its path, fits the attributes of its arrays to it, and tells what is not carried.
pub fn carry(
    graph: &Graph,
    inputs: &[InputArray],
    outputs: &mut [OutputPlan],
    notes: &mut Vec<String>,
) -> Result<BTreeMap<PathBuf, Surroundings>, OpenError> {
    let mut all: BTreeMap<PathBuf, Surroundings> = BTreeMap::new();
    let mut told = BTreeSet::new();
    let paths: BTreeSet<PathBuf> = outputs.iter().map(|output| output.path.clone()).collect();
    for path in paths {
        let mut found = Surroundings::default();
        for output in outputs.iter().filter(|output| output.path == path) {
            let origin = graph.origin(output.target.array);
            let beside = origin.as_ref().and_then(|origin| inputs[origin.input].beside.as_ref());
            if let (Some(origin), Some(beside)) = (origin.as_ref(), beside)
                && holds_groups(output)
            {
                Taking { beside, origin, output, told: &mut told }.take(&mut found)?;
            }
        }
        settle(outputs.iter().filter(|output| output.path == path), &mut found, &mut told);
        for output in outputs.iter_mut().filter(|output| output.path == path) {
            name_coordinates(&mut output.layout, &found);
        }
        for attributes in found.groups.values_mut() {
            let named = words(attributes, "coordinates").join(" ");
            keep_words(attributes, "coordinates", &named, &found.coordinates);
        }
        all.insert(path, found);
    }
    notes.extend(told);
    Ok(all)
}

/// An array in a file, at a root, or as a list of points has nothing beside itself.
fn holds_groups(output: &OutputPlan) -> bool {
    output.target.member.is_some() && output.layout.points.is_none() && !is_npy(&output.path)
}

/// What one array of an output takes from beside its input.
struct Taking<'a> {
    beside: &'a Beside,
    origin: &'a Origin,
    output: &'a OutputPlan,
    told: &'a mut BTreeSet<String>,
}

impl Taking<'_> {
    fn take(&mut self, found: &mut Surroundings) -> Result<(), OpenError> {
        let group = self.beside.group();
        self.take_groups(found);
        found.is_consolidated |= group.is_consolidated;
        let seen = self.seen();
        let pixels = geotransform::axes(&self.axis_names()).map(|[x, y]| [seen[x], seen[y]]);
        for coordinate in &group.coordinates {
            let mut coordinate = coordinate.clone();
            if !seen.iter().all(Seen::is_same)
                && let Err(reason) = geotransform::fit(&mut coordinate.node.attributes, pixels)
            {
                self.told.insert(format!("GeoTransform of {} is not carried: {reason}", coordinate.name));
            }
            match self.coordinate(&coordinate)? {
                Ok(taken) => found.coordinates.extend(taken),
                Err(reason) => {
                    self.told.insert(format!("coordinate {} is not carried: {reason}", coordinate.name));
                }
            }
        }
        Ok(())
    }

    /// Attributes of the groups that the array lies in, from its own outwards as far as the output has groups.
    fn take_groups(&mut self, found: &mut Surroundings) {
        let group = self.beside.group();
        let member = self.output.target.member.as_deref().unwrap_or_default();
        let (mut above, mut inside) = (member, group.array.as_str());
        for attributes in &group.attributes {
            if above.is_empty() {
                break;
            }
            above = above.rsplit_once('/').map_or("", |(group, _)| group);
            inside = inside.rsplit_once('/').map_or("", |(group, _)| group);
            let mut attributes = attributes.clone();
            attributes.shift_remove(ATTRIBUTE);
            let level = Level {
                path: group.array[inside.len()..].trim_start_matches('/'),
                member: member[above.len()..].trim_start_matches('/'),
                seen: &self.seen(),
                rank: self.origin.axes.len(),
                zarr_format: self.output.layout.zarr_format,
            };
            if let Err(reason) = multiscales::fit(&mut attributes, &level) {
                self.told.insert(reason);
            }
            found.groups.entry(above.to_owned()).or_insert(attributes);
        }
    }

    /// What became of each axis of the source.
    fn seen(&self) -> Vec<Seen> {
        let one = |axis: usize| {
            let shown = &self.beside.axes[axis];
            match (shown.view.and_then(|view| self.place(view)), shown.shown.stride()) {
                (None, _) => Seen::Gone,
                (Some((axis, per)), Some(stride)) if shown.edges.is_none() => Seen::evenly(axis, stride, per),
                (Some((axis, _)), _) => Seen::Unevenly { axis },
            }
        };
        (0..self.beside.axes.len()).map(one).collect()
    }

    /// The output's axis that runs along one of the input, and how many entries a cell stands for.
    fn place(&self, view: usize) -> Option<(usize, u64)> {
        let mut axes = self.origin.axes.iter().enumerate();
        axes.find_map(|(at, own)| own.filter(|own| own.axis == view).map(|own| (at, own.per)))
    }

    /// What each axis of the source is called, also by what its coordinate says of it.
    fn axis_names(&self) -> Vec<Vec<&str>> {
        let mut names: Vec<Vec<&str>> = self.beside.axes.iter().map(|axis| axis.name.as_deref().into_iter().collect()).collect();
        for coordinate in &self.beside.group().coordinates {
            if let [Some(axis)] = coordinate.axes[..]
                && coordinate.frame.names[0].as_deref() == Some(&coordinate.name)
            {
                let said = ["axis", "standard_name"].into_iter().filter_map(|key| coordinate.node.attributes.get(key)?.as_str());
                names[axis].extend(said);
            }
        }
        names
    }

    /// A coordinate as the output has it. `None`: it goes with an axis that does. The reason when it can't be carried.
    fn coordinate(&self, coordinate: &Coordinate) -> Result<Result<Option<Carried>, String>, OpenError> {
        let mut cuts = Vec::new();
        for (own, &len) in coordinate.axes.iter().zip(&coordinate.frame.shape) {
            let Some(axis) = own else {
                cuts.push(Cut::whole(len));
                continue;
            };
            let shown = &self.beside.axes[*axis];
            let is_kept = match shown.view.map(|view| self.place(view)) {
                None => false,
                Some(Some((_, 1))) => true,
                Some(Some(_)) => return Ok(Err("a cell of the output stands for several of its entries".to_owned())),
                Some(None) => return Ok(Ok(None)),
            };
            cuts.push(Cut { shown: shown.shown.clone(), is_kept, edges: shown.edges.clone() });
        }
        if self.beside.is_joined && coordinate.axes.iter().all(Option::is_none) && !self.is_grid_mapping(&coordinate.name) {
            return Ok(Err("it is one for each of the arrays that are joined".to_owned()));
        }
        let kept = || cuts.iter().zip(&coordinate.frame.names).filter(|(cut, _)| cut.is_kept);
        let dimensions: Vec<_> = kept().map(|(cut, name)| (name.clone(), cut.shown.len)).collect();
        let key = format!("{:?} {cuts:?} {:?}", coordinate.path, self.origin.input);
        let how = match () {
            () if cuts.iter().all(Cut::is_whole) => How::Copied,
            () if cuts.iter().any(|cut| cut.edges.is_some()) => How::Joined,
            () => How::Sliced,
        };
        let root = &self.beside.group().root;
        let content = match (how, coordinate.node.format == self.output.layout.zarr_format) {
            (How::Copied, true) => {
                let numbers: Option<Arc<dyn Source>> = match &coordinate.values {
                    Values::Numbers(header) => Some(Arc::new(zarr::open_coordinate(root, coordinate, header)?)),
                    Values::Strings(_) | Values::Other => None,
                };
                Content::Stored { root: root.clone(), coordinate: Box::new(coordinate.clone()), numbers }
            }
            _ => match self.cut(coordinate, cuts, &dimensions)? {
                Ok(content) => content,
                Err(reason) => return Ok(Err(reason)),
            },
        };
        let member = self.output.target.member.as_deref().unwrap_or_default();
        let above = member.rsplit_once('/').map(|(group, _)| group);
        let path = above.map_or(coordinate.name.clone(), |group| format!("{group}/{}", coordinate.name));
        Ok(Ok(Some(Carried { name: coordinate.name.clone(), path, how, content, dimensions, key })))
    }

    fn is_grid_mapping(&self, name: &str) -> bool {
        grid_mappings(&self.output.layout.attributes).contains(&name)
    }

    /// Cells of a coordinate, or of those of the same name in all groups, as an array of their own.
    fn cut(
        &self,
        coordinate: &Coordinate,
        cuts: Vec<Cut>,
        dimensions: &[(Option<String>, u64)],
    ) -> Result<Result<Content, String>, OpenError> {
        let is_joined = cuts.iter().any(|cut| cut.edges.is_some());
        let mut like = Vec::new();
        for group in &self.beside.groups[..if is_joined { self.beside.groups.len() } else { 1 }] {
            let same = group.coordinates.iter().find(|other| other.name == coordinate.name && is_like(other, coordinate));
            match same {
                Some(same) => like.push((&group.root, same)),
                None => return Ok(Err(format!("{} has none of the same kind, in the same units", group.root.display()))),
            }
        }
        let mut attributes = coordinate.node.attributes.clone();
        attributes.shift_remove("_ARRAY_DIMENSIONS");
        let (cells, dtype, chunks) = match &coordinate.values {
            Values::Numbers(header) => {
                if header.fill_is_missing {
                    attributes.insert("_FillValue".to_owned(), fill::json(&header.fill));
                }
                let mut sources: Vec<Arc<dyn Source>> = Vec::new();
                for (root, same) in like {
                    if let Values::Numbers(header) = &same.values {
                        sources.push(Arc::new(zarr::open_coordinate(root, same, header)?));
                    }
                }
                (Cells::Numbers(sources), header.dtype, &header.chunk_shape)
            }
            Values::Strings(strings) => {
                let one = |(root, same): (&PathBuf, &Coordinate)| match &same.values {
                    Values::Strings(strings) => Some((root.clone(), format!("{}/", same.path), (**strings).clone())),
                    _ => None,
                };
                (Cells::Strings(like.into_iter().filter_map(one).collect()), DType::U8, &strings.chunk_shape)
            }
            Values::Other => return Ok(Err("it holds neither numbers nor strings, and is not copied as it is".to_owned())),
        };
        let kept = cuts.iter().zip(chunks).filter(|(cut, _)| cut.is_kept);
        let layout = &self.output.layout;
        let layout = OutputLayout {
            shape: dimensions.iter().map(|(_, len)| *len).collect(),
            dtype,
            chunks: kept.map(|(cut, chunk)| (*chunk).clamp(1, cut.shown.len.max(1))).collect(),
            shards: None,
            codec: layout.codec.clone(),
            zarr_format: layout.zarr_format,
            dimension_names: dimensions.iter().map(|(name, _)| name.clone()).collect(),
            attributes,
            points: None,
            is_remote: layout.is_remote,
        };
        Ok(Ok(Content::Cut { cells, cuts, layout: Box::new(layout) }))
    }
}

/// True when two coordinates can be one: of the same data type along the same axes, and in the same units.
fn is_like(a: &Coordinate, b: &Coordinate) -> bool {
    let units = |of: &Coordinate| UNITS.map(|name| of.node.attributes.get(name).cloned());
    let missing = |header: &Header| header.fill_is_missing.then(|| header.fill.bytes().to_vec());
    let is_same = match (&a.values, &b.values) {
        (Values::Numbers(a), Values::Numbers(b)) => a.dtype == b.dtype && missing(a) == missing(b),
        (Values::Strings(_), Values::Strings(_)) => true,
        _ => false,
    };
    is_same && a.axes == b.axes && units(a) == units(b)
}

/// Leaves one of each name. Names that mean two things, or axes of two lengths, would make a group that nobody opens.
fn settle<'o>(outputs: impl Iterator<Item = &'o OutputPlan> + Clone, found: &mut Surroundings, told: &mut BTreeSet<String>) {
    let mut lengths: BTreeMap<&str, u64> = BTreeMap::new();
    for layout in outputs.clone().map(|output| &output.layout) {
        lengths.extend(layout.dimension_names.iter().zip(&layout.shape).filter_map(|(name, len)| Some((name.as_deref()?, *len))));
    }
    let mut left: Vec<Carried> = Vec::new();
    for carried in std::mem::take(&mut found.coordinates) {
        let is_array = outputs.clone().any(|output| output.target.member.as_ref() == Some(&carried.path));
        let mut own = carried.dimensions.iter().filter_map(|(name, len)| Some((name.as_deref()?, *len)));
        let clashes = is_array || own.any(|(name, len)| lengths.get(name).is_some_and(|other| *other != len));
        match left.iter().find(|other| other.path == carried.path) {
            Some(same) if same.key == carried.key => {}
            None if !clashes => left.push(carried),
            _ => {
                told.insert(format!(
                    "coordinate {} is not carried: its name or its axes mean something else there",
                    carried.name
                ));
            }
        }
    }
    found.coordinates = left;
}

/// Has an array name the coordinates that are there, and no others.
fn name_coordinates(layout: &mut OutputLayout, found: &Surroundings) {
    let axes: Vec<&str> = layout.dimension_names.iter().flatten().map(String::as_str).collect();
    let mut named = words(&layout.attributes, "coordinates").join(" ");
    // What was the coordinate of an axis, of which one entry is left.
    for single in found.coordinates.iter().filter(|c| c.how != How::Copied && c.dimensions.is_empty()) {
        if !named.split(' ').any(|word| word == single.name) && !axes.contains(&single.name.as_str()) {
            named = format!("{named} {}", single.name);
        }
    }
    keep_words(&mut layout.attributes, "coordinates", &named, &found.coordinates);
    let is_there = |name: &str| found.coordinates.iter().any(|carried| carried.name == name);
    if !grid_mappings(&layout.attributes).into_iter().all(is_there) {
        layout.attributes.shift_remove("grid_mapping");
    }
}

/// Sets an attribute to those of the words that name what is there; none, none.
fn keep_words(attributes: &mut Map<String, Value>, name: &str, text: &str, carried: &[Carried]) {
    let is_there = |word: &&str| carried.iter().any(|carried| carried.name == *word);
    let kept: Vec<&str> = text.split_whitespace().filter(is_there).collect();
    match kept.is_empty() {
        true => drop(attributes.shift_remove(name)),
        false => drop(attributes.insert(name.to_owned(), json!(kept.join(" ")))),
    }
}
