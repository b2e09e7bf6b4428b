//! `grey_opening`, `grey_closing`, `white_tophat`, `black_tophat`, `morphological_gradient`, as scipy.ndimage has them.
//!
//! An opening is the dilation of the eroded array, a closing the erosion of the dilated one; both halos add up. Differences
//! of integers wrap as numpy's do (only a constant boundary can make one negative), those of bools say where they differ.

use super::super::Info;
use super::extremum::build;
use super::order::Recipe;
use super::params::{FOOTPRINT, ORIGIN, SIZE};

const TWICE: &str = "twice half the window on both sides of each axis, more by an origin";

pub static GREY_OPENING: Info = Info {
    name: "grey_opening",
    summary: "dilation of the erosion: removes bright details smaller than the window",
    kind: "map",
    inputs: super::ONE_ORDERED,
    outputs: super::SAME_VALUES,
    halo: TWICE,
    boundary: super::BOUNDARY,
    devices: "cpu",
    params: &[SIZE, FOOTPRINT, ORIGIN],
    build: |table| build(table, "grey_opening", Recipe::Opening),
};

pub static GREY_CLOSING: Info = Info {
    name: "grey_closing",
    summary: "erosion of the dilation: removes dark details smaller than the window",
    kind: "map",
    inputs: super::ONE_ORDERED,
    outputs: super::SAME_VALUES,
    halo: TWICE,
    boundary: super::BOUNDARY,
    devices: "cpu",
    params: &[SIZE, FOOTPRINT, ORIGIN],
    build: |table| build(table, "grey_closing", Recipe::Closing),
};

pub static WHITE_TOPHAT: Info = Info {
    name: "white_tophat",
    summary: "the input less its opening: bright details smaller than the window",
    kind: "map",
    inputs: super::ONE_ORDERED,
    outputs: super::SAME_VALUES,
    halo: TWICE,
    boundary: super::BOUNDARY,
    devices: "cpu",
    params: &[SIZE, FOOTPRINT, ORIGIN],
    build: |table| build(table, "white_tophat", Recipe::WhiteTophat),
};

pub static BLACK_TOPHAT: Info = Info {
    name: "black_tophat",
    summary: "the closing less the input: dark details smaller than the window",
    kind: "map",
    inputs: super::ONE_ORDERED,
    outputs: super::SAME_VALUES,
    halo: TWICE,
    boundary: super::BOUNDARY,
    devices: "cpu",
    params: &[SIZE, FOOTPRINT, ORIGIN],
    build: |table| build(table, "black_tophat", Recipe::BlackTophat),
};

pub static MORPHOLOGICAL_GRADIENT: Info = Info {
    name: "morphological_gradient",
    summary: "dilation less erosion: how much a window's values differ",
    kind: "map",
    inputs: super::ONE_ORDERED,
    outputs: super::SAME_VALUES,
    halo: super::WINDOW_HALO,
    boundary: super::BOUNDARY,
    devices: "cpu",
    params: &[SIZE, FOOTPRINT, ORIGIN],
    build: |table| build(table, "morphological_gradient", Recipe::Gradient),
};
