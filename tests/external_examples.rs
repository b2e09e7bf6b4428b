//! The job files that run a Python function, run: skipped, with a line that says so, where there is no python3 with numpy
//! (`HALOSTREAM_PYTHON` names another one).

mod common;

use std::path::Path;
use std::process::Command;

use common::{Folder, read, run};

/// A Python with numpy.
fn python() -> Option<String> {
    let name = std::env::var("HALOSTREAM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&name).args(["-c", "import numpy"]).output().is_ok_and(|o| o.status.success());
    if !found {
        println!("skipped: no {name} with numpy");
    }
    found.then_some(name)
}

/// A shipped job file. Tests run in the project's folder, where its commands start.
fn shipped(path: &str, python: &str) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    // The shipped files write beside the project; a test writes into its own folder.
    text.replace("\"python3\"", &format!("{python:?}")).replace("../out/", "")
}

#[test]
fn smooth_is_the_mean_over_a_box() {
    let Some(python) = python() else { return };
    let folder = Folder::new("smooth");
    let text = shipped("config/external.toml", &python);
    run(&text, &folder.0).unwrap();
    // The same input, written as it is.
    let copy = text.split("[[step]]").next().unwrap().to_owned() + "[output]\npath = \"volume.zarr\"\n";
    run(&copy, &folder.0).unwrap();
    let (x, got) = (read(&folder.path("volume.zarr"), None), read(&folder.path("smooth.zarr"), None));
    assert_eq!(got.shape, x.shape);
    let (x, got, n) = (x.values::<f32>(), got.values::<f32>(), [48i64, 64, 64]);
    let near = |at: i64, axis: usize| (at - 2..=at + 2).map(move |k| k.clamp(0, n[axis] - 1));
    for (i, value) in got.iter().enumerate() {
        let at = [i as i64 / (n[1] * n[2]), i as i64 / n[2] % n[1], i as i64 % n[2]];
        let mut sum = 0.0;
        for a in near(at[0], 0) {
            for b in near(at[1], 1) {
                sum += near(at[2], 2).map(|c| x[((a * n[1] + b) * n[2] + c) as usize] as f64).sum::<f64>();
            }
        }
        let want = sum / 125.0;
        assert!((*value as f64 - want).abs() <= 1e-5 * want.abs().max(1.0), "{at:?}: {value}, expected {want}");
    }
}

#[test]
fn ks_test_in_numpy_equals_the_built_in_one() {
    let Some(python) = python() else { return };
    let folder = Folder::new("ks");
    let power = "[[step]]\nop = \"intensity\"\n\n[[step]]";
    let text = shipped("examples/external_ks_test.toml", &python).replace("[[step]]", power);
    run(&text, &folder.0).unwrap();
    let built_in = text.split(power).next().unwrap().to_owned()
        + power
        + "\nop = \"ks_test\"\nhalf_window = [5, 5]\n\n[output]\npath = \"built-in.zarr\"\nfrom = \"ks_test.dist\"\n";
    run(&built_in, &folder.0).unwrap();
    let (got, want) = (read(&folder.path("external_ks_test.zarr"), None), read(&folder.path("built-in.zarr"), None));
    assert_eq!((&got.shape, &want.shape), (&vec![60, 50, 11, 11], &got.shape));
    let (got, want) = (got.values::<f32>(), want.values::<f32>());
    let differing = got.iter().zip(&want).filter(|(g, w)| g != w && !(g.is_nan() && w.is_nan())).count();
    assert_eq!(differing, 0);
    assert!(got[0].is_nan() && got.iter().any(|v| *v > 0.3), "a corner's window leaves the image, and pixels differ");
}

/// The same numbers out of an HDF5 file and a GeoTIFF, where their readers are installed.
#[test]
fn files_of_other_formats_are_read_by_a_program() {
    let Some(python) = python() else { return };
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/python");
    let h5py = "import h5py, numpy as np; f = h5py.File('x.h5', 'w'); f['g/x'] = np.arange(60, dtype='i2').reshape(3, 4, 5)";
    let rasterio = "import rasterio, numpy as np; x = np.arange(60, dtype='i2').reshape(3, 4, 5); \
                    f = rasterio.open('x.tif', 'w', driver='GTiff', count=3, height=4, width=5, dtype='int16'); f.write(x); f.close()";
    for (module, make, file, more) in [("h5py", h5py, "x.h5", ", dataset = 'g/x'"), ("rasterio", rasterio, "x.tif", "")] {
        let has = Command::new(&python).args(["-c", &format!("import {module}")]).output().is_ok_and(|o| o.status.success());
        if !has {
            println!("skipped: no {module}");
            continue;
        }
        let folder = Folder::new(module);
        let made = Command::new(&python).args(["-c", make]).current_dir(&folder.0).status();
        assert!(made.is_ok_and(|status| status.success()), "{module} writes no file");
        let script = scripts.join(format!("read_{module}.py")).display().to_string();
        let path = folder.path(file).display().to_string();
        let text = format!(
            "[input]\ncommand = [{python:?}, {script:?}]\nparams = {{ path = {path:?}{more} }}\nshape = [3, 4, 5]\n\
             dtype = 'int16'\nchunks = [2, 3, 2]\n[output]\npath = 'out.zarr'\n"
        );
        run(&text, &folder.0).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(read(&folder.path("out.zarr"), None).values::<i16>(), (0..60).collect::<Vec<i16>>());
    }
}
