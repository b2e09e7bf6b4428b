//! `minimum_filter`, `maximum_filter`, `grey_erosion`, `grey_dilation`: extrema over a window, as scipy.ndimage has them.
//!
//! Erosion is the minimum over the window as it stands, dilation the maximum over the mirrored one.

use super::super::{Info, Operator};
use super::order::{Extreme, Order, Recipe};
use super::params::FootprintSpec;
use crate::config::table::Table;

pub static MINIMUM_FILTER: Info = Info {
    name: "minimum_filter",
    summary: "smallest value of a window",
    cost: "a box: about log2(size) comparisons an element and axis; a footprint: one per cell of it",
    source: "scipy.ndimage.minimum_filter",
    build: |table| build(table, "minimum_filter", Recipe::Plain(Extreme::Smallest)),
    ..super::ORDERED
};

pub static MAXIMUM_FILTER: Info = Info {
    name: "maximum_filter",
    summary: "largest value of a window",
    cost: "a box: about log2(size) comparisons an element and axis; a footprint: one per cell of it",
    source: "scipy.ndimage.maximum_filter",
    build: |table| build(table, "maximum_filter", Recipe::Plain(Extreme::Largest)),
    ..super::ORDERED
};

pub static GREY_EROSION: Info = Info {
    name: "grey_erosion",
    summary: "smallest value of a window",
    cost: "as minimum_filter",
    source: "scipy.ndimage.grey_erosion",
    build: |table| build(table, "grey_erosion", Recipe::Erosion),
    ..super::ORDERED
};

pub static GREY_DILATION: Info = Info {
    name: "grey_dilation",
    summary: "largest value of the mirrored window",
    cost: "as maximum_filter",
    source: "scipy.ndimage.grey_dilation",
    build: |table| build(table, "grey_dilation", Recipe::Dilation),
    ..super::ORDERED
};

/// Shared with the filters that are made of these.
pub(super) fn build(table: &mut Table<'_>, op: &'static str, recipe: Recipe) -> Option<Box<dyn Operator>> {
    Some(Box::new(Order { op, recipe, footprint: FootprintSpec::read(table)? }))
}
