//! Lists of points: the pixels of the raster that have a value, in C order, whatever the grids.

use halostream::array::DType;
use num_complex::Complex32;

use crate::common::{Array, Random, read};
use crate::{Case, random_array, random_shape};

/// Coordinates and values by definition, of a raster whose first `axes` are its pixels'.
fn picked(raster: &Array, axes: usize) -> (Array, Array) {
    let (pixels, value) = raster.shape.split_at(axes);
    let size = value.iter().product::<u64>() as usize * raster.dtype.size();
    let (mut index, mut values) = (Vec::new(), Vec::new());
    for (n, bytes) in raster.bytes.chunks(size).enumerate() {
        let has_value = match raster.dtype {
            DType::F32 | DType::C64 => bytemuck::pod_collect_to_vec::<u8, f32>(bytes).iter().any(|v| !v.is_nan()),
            DType::F64 | DType::C128 => bytemuck::pod_collect_to_vec::<u8, f64>(bytes).iter().any(|v| !v.is_nan()),
            DType::F16 => bytemuck::pod_collect_to_vec::<u8, half::f16>(bytes).iter().any(|v| !v.is_nan()),
            _ => bytes.iter().any(|b| *b != 0),
        };
        if has_value {
            let at = |a: usize| n as u64 / pixels[a + 1..].iter().product::<u64>() % pixels[a];
            index.extend((0..axes).map(|a| at(a) as i32));
            values.extend_from_slice(bytes);
        }
    }
    let count = (index.len() / axes) as u64;
    (Array::new(&[count, axes as u64], &index), Array { shape: [&[count], value].concat(), dtype: raster.dtype, bytes: values })
}

/// NaN in most pixels, or zero.
fn thinned(r: &mut Random, mut array: Array) -> Array {
    let most = r.range(0, 8);
    for at in 0..array.shape.iter().product::<u64>() as usize {
        if r.range(0, 9) < most {
            let size = array.dtype.size();
            let cell = &mut array.bytes[at * size..][..size];
            match array.dtype {
                DType::F16 => cell.copy_from_slice(bytemuck::bytes_of(&half::f16::NAN)),
                DType::F32 => cell.copy_from_slice(bytemuck::bytes_of(&f32::NAN)),
                DType::F64 => cell.copy_from_slice(bytemuck::bytes_of(&f64::NAN)),
                DType::C64 => cell.copy_from_slice(bytemuck::bytes_of(&Complex32::new(f32::NAN, f32::NAN))),
                _ => cell.fill(0),
            }
        }
    }
    array
}

#[test]
fn arrays_of_any_rank_and_dtype() {
    let mut r = Random(40);
    let dtypes = [DType::F32, DType::F64, DType::C64, DType::F16, DType::I16, DType::U8, DType::Bool, DType::I64];
    for round in 0..40 {
        let dtype = dtypes[round % dtypes.len()];
        let rank = r.range(1, 4) as usize;
        let shape = random_shape(&mut r, rank, if rank == 1 { 300 } else { 13 });
        let x = random_array(&mut r, dtype, &shape);
        let x = thinned(&mut r, x);
        let case = Case::new(&mut r, "points", &[("x", &x)]);
        let more = match r.range(0, 2) {
            0 => "points = \"index\"".to_owned(),
            _ => format!("points = \"index\"\nchunks = [{}]", r.range(1, 40)),
        };
        case.run("", &more);
        let (index, values) = picked(&x, x.shape.len());
        let out = case.folder.path("out.zarr");
        assert_eq!(read(&out, Some("index")), index, "{}", case.job("", &more));
        assert_eq!(read(&out, Some("values")), values, "{}", case.job("", &more));
    }
}

#[test]
fn pixels_with_several_numbers() {
    let mut r = Random(41);
    for round in 0..8 {
        let shape = [r.range(2, 14), r.range(2, 14), r.range(2, 5)];
        let z: Vec<Complex32> = (0..shape.iter().product::<u64>())
            .map(|_| if r.range(0, 30) == 0 { f32::NAN.into() } else { Complex32::new(r.signed() as f32, r.signed() as f32) })
            .collect();
        let x = Array::new(&shape, &z);
        let case = Case::new(&mut r, "points-insar", &[("x", &x)]);
        let steps = format!(
            "[[step]]\nop = \"ks_test\"\nhalf_window = [{}, 1]\n[[step]]\nop = \"select_shp\"\nalpha = 0.4\n[[step]]\n\
             op = \"coherence\"\ninputs = [\"x\", \"select_shp\"]\nmin_count = {}\n[[step]]\nop = \"emi\"\n",
            r.range(0, 2),
            r.range(2, 5)
        );
        let chunks = format!("chunks = [{}]", r.range(1, 30));
        // Beside the rasters that they are points of, in one run.
        let more = format!(
            "from = \"coherence\"\npoints = \"index\"\n{chunks}\n[outputs.raster]\npath = \"raster.zarr\"\nfrom = \"coherence\"\n\
             [outputs.link]\npath = \"link.zarr\"\nfrom = \"emi\"\npoints = \"index\"\n{chunks}\n[outputs.phase]\n\
             path = \"phase.zarr\"\nfrom = \"emi.phase\""
        );
        case.run(&steps, &more);
        let expect = |name: &str, group: &str, raster: &Array| {
            let (index, values) = picked(raster, 2);
            let path = case.folder.path(name);
            assert!(read(&path, Some(&format!("{group}index"))) == index, "round {round}, {}", case.job(&steps, &more));
            assert!(read(&path, Some(&format!("{group}values"))) == values, "round {round}, {}", case.job(&steps, &more));
        };
        expect("out.zarr", "", &read(&case.folder.path("raster.zarr"), None));
        expect("link.zarr", "phase/", &read(&case.folder.path("phase.zarr"), None));
        let quality = read(&case.folder.path("link.zarr"), Some("quality/values"));
        assert_eq!((quality.dtype, quality.shape.len()), (DType::F32, 1));
    }
}

#[test]
fn steps_read_lists_of_values() {
    let mut r = Random(42);
    let shape = [9, 11, 4];
    let z: Vec<Complex32> = (0..396).map(|_| Complex32::new(r.signed() as f32, r.signed() as f32)).collect();
    let case = Case::new(&mut r, "points-chain", &[("x", &Array::new(&shape, &z))]);
    let chain = "[[step]]\nop = \"ks_test\"\nhalf_window = 2\n[[step]]\nop = \"select_shp\"\n[[step]]\nop = \"coherence\"\n\
                 inputs = [\"x\", \"select_shp\"]\nmin_count = 12\n";
    case.run(chain, "points = \"index\"\nchunks = [10]\nfrom = \"coherence\"");
    let emi = "[input]\npath = \"out.zarr\"\narray = \"values\"\n[[step]]\nop = \"emi\"\n[output]\npath = \"again.zarr\"\n";
    crate::run(emi, &case.folder.0).expect("a job over points");
    let link = format!("{chain}[[step]]\nop = \"emi\"\n");
    let whole = format!(
        "[input]\npath = \"x.zarr\"\n{}[output]\npath = \"link.zarr\"\npoints = \"index\"\n",
        link.replace("\"x\"", "\"input\"")
    );
    crate::run(&whole, &case.folder.0).expect("a job");
    for name in ["phase", "quality"] {
        let want = read(&case.folder.path("link.zarr"), Some(&format!("{name}/values")));
        assert_eq!(read(&case.folder.path("again.zarr"), Some(name)), want);
        assert!(want.shape[0] > 20);
    }
}

#[test]
fn what_is_no_list_of_points() {
    let mut r = Random(43);
    let z: Vec<Complex32> = (0..60).map(|_| Complex32::new(r.signed() as f32, 1.0)).collect();
    let case = Case::new(&mut r, "points-refused", &[("x", &Array::new(&[3, 4, 5], &z))]);
    let refused = |more: &str, words: &str| {
        let steps = "[[step]]\nop = \"interferogram\"\npairs = [[0, 1]]\nimage_axis = 0\n";
        let job = case.job(steps, more);
        let error = crate::run(&job, &case.folder.0).expect_err("a refusal");
        assert!(error.to_string().contains(words), "{error}");
    };
    refused("points = \"index\"", "leave image_axis at its default");
    refused("points = \"all\"", "points");
    refused("points = \"index\"\nchunks = [2, 2]", "one: how many of them make a chunk");
    refused("points = \"index\"\nchunks = [2]\nshards = [4]", "a list of points has none");
}
