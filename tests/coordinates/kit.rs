//! Groups made by hand.

use std::path::{Path, PathBuf};

use halostream::array::DType;
use halostream::config::{CodecName, CodecSpec};
use halostream::writer::store::WriteStore;
use halostream::writer::{OutputLayout, Sink, zarr};
use halostream::zarr::ReadStore;
use halostream::zarr::hierarchy::Hierarchy;
use halostream::zarr::strings::Strings;
use serde_json::{Map, Value, json};

use crate::common::Array;

pub fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

/// How an array of a group lies there.
pub struct Form<'a> {
    pub format: u8,
    pub dimensions: &'a [&'a str],
    pub chunks: &'a [u64],
    pub attributes: Value,
}

impl Form<'_> {
    fn layout(&self, shape: &[u64], dtype: DType) -> OutputLayout {
        OutputLayout {
            shape: shape.to_vec(),
            dtype,
            chunks: self.chunks.to_vec(),
            shards: None,
            codec: CodecSpec { name: CodecName::Zstd, level: None },
            zarr_format: self.format,
            dimension_names: self.dimensions.iter().map(|name| Some((*name).to_owned())).collect(),
            attributes: object(self.attributes.clone()),
            points: None,
            is_remote: false,
        }
    }
}

/// The cells of one object of an array, filled up with what `blank` gives.
fn cells<T: Clone>(shape: &[u64], chunk: &[u64], at: &[u64], values: &[T], size: usize, blank: &T) -> Vec<T> {
    let mut out = Vec::new();
    for number in 0..chunk.iter().product::<u64>() {
        let (mut rest, mut index, mut scale, mut is_inside) = (number, 0, 1, true);
        for axis in (0..shape.len()).rev() {
            let x = at[axis] * chunk[axis] + rest % chunk[axis];
            rest /= chunk[axis];
            is_inside &= x < shape[axis];
            index += x * scale;
            scale *= shape[axis];
        }
        let from = index as usize * size;
        (0..size).for_each(|i| out.push(if is_inside { values[from + i].clone() } else { blank.clone() }));
    }
    out
}

/// Adds an array to a group.
pub fn put(root: &Path, name: &str, array: &Array, form: &Form<'_>) {
    let layout = form.layout(&array.shape, array.dtype);
    let sink = zarr::create(root, name, layout.clone(), false).expect("a store");
    let grid = layout.object_grid();
    halostream::array::grid::for_each_cell::<()>(&grid.all(), |at| {
        let values = cells(&array.shape, form.chunks, at, &array.bytes, array.dtype.size(), &0);
        sink.put(at, &values).expect("a chunk");
        Ok(())
    })
    .expect("all chunks");
}

/// The same of strings.
pub fn put_strings(root: &Path, name: &str, shape: &[u64], values: &[String], form: &Form<'_>) {
    let layout = form.layout(shape, DType::U8);
    let store = WriteStore::folder(root).expect("a folder");
    let sink = zarr::create_strings_in(store, name, layout.clone(), false).expect("a store");
    halostream::array::grid::for_each_cell::<()>(&layout.object_grid().all(), |at| {
        sink.put_strings(at, &cells(shape, form.chunks, at, values, 1, &String::new())).expect("a chunk");
        Ok(())
    })
    .expect("all chunks");
}

pub fn strings(root: &Path, name: &str) -> Vec<String> {
    let node = Hierarchy::open(root).expect("a store").node(name).expect("a document").expect("an array");
    let strings = Strings::parse(&node).expect("sound").expect("strings");
    let mut found = Vec::new();
    let store = ReadStore::open(root).expect("a store");
    let read = strings.each(&store, &format!("{name}/"), &mut |_, text| found.push(text.to_owned()));
    read.expect("all chunks");
    found
}

/// The strings of the first chunk of an array with any number of axes, in C order.
pub fn strings_of_first_chunk(root: &Path, name: &str) -> Vec<String> {
    let node = Hierarchy::open(root).expect("a store").node(name).expect("a document").expect("an array");
    let strings = Strings::parse(&node).expect("sound").expect("strings");
    let store = ReadStore::open(root).expect("a store");
    strings.chunk(&store, &format!("{name}/"), &vec![0; strings.shape.len()]).expect("a chunk")
}

/// Attributes of the group or array at a path; `None` when there is none.
pub fn attributes(root: &Path, path: &str) -> Option<Map<String, Value>> {
    Hierarchy::open(root).expect("a store").node(path).expect("a document").map(|node| node.attributes)
}

/// Names of the arrays in a group.
pub fn arrays(root: &Path) -> Vec<String> {
    let arrays = Hierarchy::open(root).expect("a store").arrays("").expect("a group");
    let mut names: Vec<String> = arrays.into_iter().map(|(path, _)| path).collect();
    names.sort();
    names
}

/// A group of `u` (time, y, x) with coordinates of every kind.
pub struct Group {
    pub root: PathBuf,
    pub u: Array,
    pub time: Array,
    pub bounds: Array,
    pub y: Array,
    pub x: Array,
    /// Along (y, x).
    pub lat: Array,
    /// Along time.
    pub names: Vec<String>,
}

impl Group {
    /// Times begin at `first`. `chunk` gives a chunk length for a length.
    pub fn new(root: PathBuf, format: u8, shape: [u64; 3], first: i64, mut chunk: impl FnMut(u64) -> u64) -> Self {
        let [t, y, x] = shape;
        let numbers = |count: u64, scale: f64, from: f64| (0..count).map(|i| from + i as f64 * scale).collect::<Vec<f64>>();
        let times: Vec<i64> = (first..first + t as i64).collect();
        let group = Self {
            u: Array::new::<f32>(&shape, &(0..t * y * x).map(|i| (i * 37 % 101) as f32).collect::<Vec<_>>()),
            time: Array::new(&[t], &times),
            bounds: Array::new(&[t, 2], &times.iter().flat_map(|t| [*t, *t + 1]).collect::<Vec<_>>()),
            y: Array::new(&[y], &numbers(y, -0.5, 60.0)),
            x: Array::new(&[x], &numbers(x, 0.25, 0.0).iter().map(|v| *v as f32).collect::<Vec<_>>()),
            lat: Array::new(&[y, x], &numbers(y * x, 0.125, -3.0)),
            names: times.iter().map(|t| "é".repeat((*t % 4) as usize) + &t.to_string()).collect(),
            root,
        };
        let attributes = object(json!({"Conventions": "CF-1.8", "title": "winds"}));
        zarr::create_group(&group.root, "", format, &attributes).expect("a group");
        let mut form = |dimensions: &'static [&'static str], shape: &[u64], attributes: Value| {
            let chunks: Vec<u64> = shape.iter().map(|n| chunk(*n)).collect();
            (dimensions, chunks, attributes)
        };
        let all = [
            (
                "u",
                &group.u,
                form(
                    &["time", "y", "x"],
                    &shape,
                    json!({"units": "m s-1", "coordinates": "lat name height nowhere", "grid_mapping": "crs"}),
                ),
            ),
            ("time", &group.time, form(&["time"], &[t], json!({"units": "days since 2000-01-01", "bounds": "time_bnds"}))),
            ("time_bnds", &group.bounds, form(&["time", "bnds"], &[t, 2], json!({}))),
            ("y", &group.y, form(&["y"], &[y], json!({"standard_name": "projection_y_coordinate"}))),
            ("x", &group.x, form(&["x"], &[x], json!({}))),
            ("lat", &group.lat, form(&["y", "x"], &[y, x], json!({"units": "degrees_north"}))),
            ("height", &Array::new::<f64>(&[], &[10.0]), (&[], vec![], json!({"units": "m"}))),
            (
                "crs",
                &Array::new::<i32>(&[], &[0]),
                (&[], vec![], json!({"crs_wkt": "w", "GeoTransform": "-0.125 0.25 0 60.25 0 -0.5"})),
            ),
            ("other", &group.y, form(&["y"], &[y], json!({}))),
        ];
        for (name, array, (dimensions, chunks, attributes)) in &all {
            put(&group.root, name, array, &Form { format, dimensions, chunks, attributes: attributes.clone() });
        }
        let (dimensions, chunks, attributes) = form(&["time"], &[t], json!({}));
        put_strings(&group.root, "name", &[t], &group.names, &Form { format, dimensions, chunks: &chunks, attributes });
        group
    }
}
