//! Where the cells of an array lie after it was cut and its cells were put together: what positions and pixel sizes in attributes
//! are changed by.

/// What became of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Seen {
    /// It is not there any more.
    Gone,
    /// It is axis `axis` now, and entry `i` of that lies where entry `first + i * step` lay.
    Evenly { axis: usize, first: f64, step: f64 },
    /// It is axis `axis` now, with some of its entries.
    Unevenly { axis: usize },
}

impl Seen {
    /// An axis of which `start`, `start + step`, ... are shown, `per` of them by one cell, which lies in their middle.
    pub fn evenly(axis: usize, (start, step): (i64, i64), per: u64) -> Self {
        let (start, step, per) = (start as f64, step as f64, per as f64);
        Self::Evenly { axis, first: start + step * (per - 1.0) / 2.0, step: step * per }
    }

    /// As it was before.
    pub fn is_same(&self) -> bool {
        matches!(self, Self::Evenly { first, step, .. } if *first == 0.0 && *step == 1.0)
    }
}
