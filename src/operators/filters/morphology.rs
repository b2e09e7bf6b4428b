//! `grey_opening`, `grey_closing`, `white_tophat`, `black_tophat`, `morphological_gradient`, as scipy.ndimage has them.
//!
//! An opening is the dilation of the eroded array, a closing the erosion of the dilated one; both halos add up. Differences
//! of integers wrap as numpy's do (only a constant boundary can make one negative), those of bools say where they differ.

use super::super::Info;
use super::extremum::build;
use super::order::Recipe;

const TWICE: &str = "twice half the window on both sides of each axis, more by an origin";

pub static GREY_OPENING: Info = Info {
    name: "grey_opening",
    summary: "dilation of the erosion: removes bright details smaller than the window",
    cost: "an erosion and a dilation",
    source: "scipy.ndimage.grey_opening",
    halo: TWICE,
    build: |table| build(table, "grey_opening", Recipe::Opening),
    ..super::ORDERED
};

pub static GREY_CLOSING: Info = Info {
    name: "grey_closing",
    summary: "erosion of the dilation: removes dark details smaller than the window",
    cost: "a dilation and an erosion",
    source: "scipy.ndimage.grey_closing",
    halo: TWICE,
    build: |table| build(table, "grey_closing", Recipe::Closing),
    ..super::ORDERED
};

pub static WHITE_TOPHAT: Info = Info {
    name: "white_tophat",
    summary: "the input less its opening: bright details smaller than the window",
    cost: "an opening and a subtraction",
    source: "scipy.ndimage.white_tophat",
    halo: TWICE,
    build: |table| build(table, "white_tophat", Recipe::WhiteTophat),
    ..super::ORDERED
};

pub static BLACK_TOPHAT: Info = Info {
    name: "black_tophat",
    summary: "the closing less the input: dark details smaller than the window",
    cost: "a closing and a subtraction",
    source: "scipy.ndimage.black_tophat",
    halo: TWICE,
    build: |table| build(table, "black_tophat", Recipe::BlackTophat),
    ..super::ORDERED
};

pub static MORPHOLOGICAL_GRADIENT: Info = Info {
    name: "morphological_gradient",
    summary: "dilation less erosion: how much a window's values differ",
    cost: "an erosion, a dilation and a subtraction",
    source: "scipy.ndimage.morphological_gradient",
    build: |table| build(table, "morphological_gradient", Recipe::Gradient),
    ..super::ORDERED
};
