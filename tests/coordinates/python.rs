//! Outputs as xarray and ome-zarr-py see them. Needs a Python with these (`HALOSTREAM_PYTHON`, else `python3`); skips with a line where it
//! has none.

use std::path::Path;
use std::process::Command;

use crate::common::{Folder, run};

/// Runs a part of the script; false where a module is missing.
fn script(folder: &Folder, part: &str, modules: &str) -> bool {
    let python = std::env::var("HALOSTREAM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !Command::new(&python).args(["-c", &format!("import {modules}")]).output().is_ok_and(|o| o.status.success()) {
        println!("skipped: {python} cannot import {modules} (HALOSTREAM_PYTHON names another)");
        return false;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/coordinates/python.py");
    let ran = Command::new(&python).arg(script).arg(part).arg(&folder.0).output().expect("Python starts");
    assert!(ran.status.success(), "{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    true
}

#[test]
fn xarray_opens_what_it_would_have_selected() {
    let folder = Folder::new("coordinates-xarray");
    if !script(&folder, "make", "xarray, zarr") {
        return;
    }
    for from in [2, 3] {
        for to in [2, 3] {
            for (name, lines) in [("whole", ""), ("part", "select = '1, ::-2, 2:7'\n")] {
                let job = format!(
                    "[input]\npath = 'in{from}.zarr'\narray = 'u'\n{lines}[output]\npath = '{name}{from}{to}.zarr'\nzarr_format = {to}\n"
                );
                run(&job, &folder.0).unwrap_or_else(|error| panic!("{job}{error}"));
            }
        }
    }
    script(&folder, "check", "xarray, zarr");
}

#[test]
fn ome_zarr_opens_a_level() {
    let folder = Folder::new("coordinates-ome");
    if !script(&folder, "make-ome", "ome_zarr, zarr") {
        return;
    }
    for format in [2, 3] {
        let job = format!(
            "[input]\npath = 'ome{format}.zarr'\narray = 's0'\nselect = '2:, ::2, :'\n[output]\npath = 'level{format}.zarr'\n"
        );
        run(&job, &folder.0).unwrap_or_else(|error| panic!("{job}{error}"));
    }
    script(&folder, "check-ome", "ome_zarr, zarr");
}
