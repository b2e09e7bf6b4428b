//! Windows as job files write them: `size` and `origin`, or a `footprint` of nested lists.

use toml::de::DeValue;

use super::super::Param;
use super::super::pointwise::place;
use super::frame::MAX_WINDOW;
use crate::array::Region;
use crate::config::OneOrMany;
use crate::config::table::{Node, Table, describe, number};

/// A footprint or kernel with more cells is a slip.
pub const MAX_CELLS: usize = 1 << 20;

pub const SIZE: Param = Param {
    name: "size",
    kind: "int or [int, ...]",
    default: "none",
    doc: "length of the window, for all axes or for each; an even one reaches further back. This or footprint is required",
};
pub const FOOTPRINT: Param = Param {
    name: "footprint",
    kind: "nested lists of 0 and 1",
    default: "none",
    doc: "the cells of the window, one level of lists per axis: [[0, 1, 0], [1, 1, 1], [0, 1, 0]]",
};
pub const ORIGIN: Param = Param {
    name: "origin",
    kind: "int or [int, ...]",
    default: "0",
    doc: "shifts the window: 0 centres it, positive numbers move it to lower indices",
};

/// `size`: one length or one per axis, all of them from 1 up.
pub fn size(table: &mut Table<'_>) -> Option<OneOrMany<u64>> {
    let size = table.counts("size")?;
    let list = match &size {
        OneOrMany::One(v) => std::slice::from_ref(v),
        OneOrMany::Many(list) => list,
    };
    if let Some(bad) = list.iter().find(|v| !(1..=MAX_WINDOW).contains(*v)) {
        table.problem("size", format!("a window is 1 to {MAX_WINDOW} cells long, found {bad}"));
        return None;
    }
    Some(size)
}

pub fn origin(table: &mut Table<'_>) -> Option<OneOrMany<i64>> {
    if table.has("origin") { table.integers("origin") } else { Some(OneOrMany::One(0)) }
}

/// A box of numbers from nested lists.
#[derive(Clone, Debug, PartialEq)]
pub struct Cells {
    pub shape: Vec<usize>,
    /// In C order.
    pub values: Vec<f64>,
}

impl Cells {
    /// The nested lists at `key`; what is wrong with them becomes a problem at that key.
    pub fn read(table: &mut Table<'_>, key: &'static str) -> Option<Self> {
        let node = table.get(key)?;
        Self::from_lists(node).map_err(|message| table.problem(key, message)).ok()
    }

    pub fn from_lists(node: &Node<'_>) -> Result<Self, String> {
        let mut shape = Vec::new();
        let mut at = node.get_ref();
        while let DeValue::Array(list) = at {
            let first = list.first().ok_or("an axis of the window is empty")?;
            shape.push(list.len());
            at = first.get_ref();
        }
        if shape.is_empty() {
            return Err(format!("expected nested lists of numbers, one level per axis, found {}", describe(at)));
        }
        let mut values = Vec::new();
        collect(node, &shape, &mut values)?;
        Ok(Self { shape, values })
    }

    /// The window that these cells make; `key` is the parameter's name.
    pub fn window(&self, origin: &OneOrMany<i64>, rank: usize, key: &str) -> Result<Window, String> {
        if self.shape.len() != rank {
            return Err(format!("{key} has {} axes, the array has {rank}", self.shape.len()));
        }
        Window::new(self.shape.clone(), origin.expand(rank, "origin")?)
    }
}

fn collect(node: &Node<'_>, shape: &[usize], values: &mut Vec<f64>) -> Result<(), String> {
    match (node.get_ref(), shape) {
        (DeValue::Array(list), [len, inner @ ..]) if list.len() == *len => {
            list.iter().try_for_each(|n| collect(n, inner, values))
        }
        (DeValue::Array(_), _) => Err("the lists are not all of one length: a window is a box".to_owned()),
        (value, []) => {
            let value = match value {
                DeValue::Boolean(b) => f64::from(u8::from(*b)),
                other => number(other)
                    .filter(|v| v.is_finite())
                    .ok_or_else(|| format!("expected numbers, found {}", describe(other)))?,
            };
            if values.len() == MAX_CELLS {
                return Err(format!("more than {MAX_CELLS} cells"));
            }
            values.push(value);
            Ok(())
        }
        (other, _) => Err(format!("the lists are not all nested alike, found {}", describe(other))),
    }
}

/// A box around each cell, as scipy places it: along an axis it begins `shape // 2 + origin` cells before.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    pub shape: Vec<usize>,
    pub origin: Vec<i64>,
}

impl Window {
    pub fn new(shape: Vec<usize>, origin: Vec<i64>) -> Result<Self, String> {
        for (axis, (&len, &o)) in shape.iter().zip(&origin).enumerate() {
            let half = (len / 2) as i64;
            if o < -half || o > (len as i64 - 1) / 2 {
                return Err(format!(
                    "origin {o} moves the window of {len} cells off its cell on axis {axis}; {} to {} is possible",
                    -half,
                    (len as i64 - 1) / 2
                ));
            }
        }
        Ok(Self { shape, origin })
    }

    pub fn boxed(size: &OneOrMany<u64>, origin: &OneOrMany<i64>, rank: usize) -> Result<Self, String> {
        let shape = size.expand(rank, "size")?.iter().map(|&n| n as usize).collect();
        Self::new(shape, origin.expand(rank, "origin")?)
    }

    pub fn before(&self, axis: usize) -> usize {
        ((self.shape[axis] / 2) as i64 + self.origin[axis]) as usize
    }

    pub fn after(&self, axis: usize) -> usize {
        self.shape[axis] - 1 - self.before(axis)
    }

    /// Cells needed on both sides of each axis.
    pub fn reach(&self) -> Vec<u64> {
        (0..self.shape.len()).map(|a| self.before(a).max(self.after(a)) as u64).collect()
    }

    /// Where the cells that `keep` lets through (by their number in C order) lie from the window's own cell.
    pub fn offsets(&self, keep: impl Fn(usize) -> bool) -> Vec<Vec<i64>> {
        let start: Vec<i64> = (0..self.shape.len()).map(|a| -(self.before(a) as i64)).collect();
        let stop: Vec<i64> = start.iter().zip(&self.shape).map(|(s, n)| s + *n as i64).collect();
        let region = Region::new(start, stop);
        (0..region.count()).filter(|n| keep(*n)).map(|n| place(&region, n)).collect()
    }

    /// The window of the opposite operation (dilation for erosion, convolution for correlation): mirrored through its
    /// cell. One of even length has no middle and moves by one.
    pub fn mirrored(&self) -> Self {
        let origin = self.shape.iter().zip(&self.origin).map(|(&n, &o)| if n % 2 == 0 { -o - 1 } else { -o }).collect();
        Self { shape: self.shape.clone(), origin }
    }
}

/// The cells of a window that take part.
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    pub window: Window,
    /// In C order; `None`: all of them.
    cells: Option<Vec<bool>>,
}

impl Footprint {
    pub fn count(&self) -> usize {
        match &self.cells {
            Some(cells) => cells.iter().filter(|c| **c).count(),
            None => self.window.shape.iter().product(),
        }
    }

    pub fn is_box(&self) -> bool {
        self.cells.is_none()
    }

    pub fn mirrored(&self) -> Self {
        Self { window: self.window.mirrored(), cells: self.cells.as_ref().map(|c| c.iter().rev().copied().collect()) }
    }

    /// Where the cells lie from the one that the window belongs to, in C order.
    pub fn offsets(&self) -> Vec<Vec<i64>> {
        self.window.offsets(|n| self.cells.as_ref().is_none_or(|c| c[n]))
    }
}

/// `size` or `footprint`, and `origin`, of a step whose input is not known yet.
pub struct FootprintSpec {
    size: Option<OneOrMany<u64>>,
    cells: Option<Cells>,
    origin: OneOrMany<i64>,
}

impl FootprintSpec {
    pub fn read(table: &mut Table<'_>) -> Option<Self> {
        match (table.has("size"), table.has("footprint")) {
            (false, false) => table.problem("size", "missing; give size or footprint, such as size = 3"),
            (true, true) => table.problem("size", "give size or footprint, not both"),
            _ => {}
        }
        let size = size(table);
        let cells = Cells::read(table, "footprint");
        if let Some(cells) = &cells {
            if cells.values.iter().any(|v| *v != 0.0 && *v != 1.0) {
                table.problem("footprint", "expected 0 and 1 only");
            } else if cells.values.iter().all(|v| *v == 0.0) {
                table.problem("footprint", "has no cell; set at least one to 1");
            }
        }
        let origin = origin(table)?;
        (size.is_some() != cells.is_some()).then_some(Self { size, cells, origin })
    }

    pub fn expand(&self, rank: usize) -> Result<Footprint, String> {
        match (&self.size, &self.cells) {
            (Some(size), _) => Ok(Footprint { window: Window::boxed(size, &self.origin, rank)?, cells: None }),
            (None, Some(cells)) => {
                let window = cells.window(&self.origin, rank, "footprint")?;
                let list: Vec<bool> = cells.values.iter().map(|v| *v != 0.0).collect();
                Ok(Footprint { window, cells: list.contains(&false).then_some(list) })
            }
            (None, None) => Err("give size or footprint".to_owned()),
        }
    }
}
