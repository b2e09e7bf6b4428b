//! The seismic attributes on any grid against one block of the whole array, and behind a filter against scipy.

use halostream::array::DType;

use crate::common::{Array, Random};
use crate::{Case, alone, hex, random_array, random_boundary, random_shape};

/// Whole traces first: they take no boundary. Arrays have three axes.
pub const ATTRIBUTES: [(&str, &str); 18] = [
    ("envelope", ""),
    ("envelope", "axis = 0"),
    ("instantaneous_phase", "axis = 1"),
    ("instantaneous_phase", ""),
    ("instantaneous_frequency", "dt = 0.002"),
    ("instantaneous_frequency", "dt = 0.002\naxis = 0"),
    ("sweetness", ""),
    ("sweetness", "axis = 1\nwindow = 4\nmin_frequency = 30.0"),
    ("rms_amplitude", "window = 9"),
    ("rms_amplitude", "window = 4\naxis = 0"),
    ("semblance_coherence", "aperture = [3, 3, 9]"),
    ("semblance_coherence", "aperture = [1, 6, 2]\naxis = 1"),
    ("semblance_coherence", "aperture = [12, 2, 3]\naxis = 0"),
    ("gst_dip", "spatial_axis = 0"),
    ("gst_dip", "axis = 0\nspatial_axis = 2\nsigma = 1.2\ngradient_sigma = 0.6"),
    ("gst_dip", "spatial_axis = [0, 1]"),
    ("gst_dip", "axis = 1\nspatial_axis = [2, 0]\nsigma = 0.8\ntruncate = 3.0"),
    ("gst_dip", "axis = 1\nspatial_axis = 0\nsigma = [0.5, 3.0]\ntruncate = 2.5"),
];
const ONE: &str = "[[step]]\nop = \"identity\"\ninputs = [\"gst_dip.dip_0\"]\n";
const WHOLE_TRACES: [&str; 4] = ["envelope", "instantaneous_phase", "instantaneous_frequency", "sweetness"];

#[test]
fn attributes_do_not_depend_on_the_grid_or_on_vector_code() {
    let mut r = Random(31);
    for (op, lines) in ATTRIBUTES {
        for _ in 0..3 {
            // Two samples at least, along whichever axis they lie.
            let shape: Vec<u64> = random_shape(&mut r, 3, 22).iter().map(|n| n + 1).collect();
            let dtype = *r.pick(&[DType::F32, DType::F64, DType::I16, DType::U8, DType::I32, DType::F32]);
            let x = random_array(&mut r, dtype, &shape);
            let boundary = match op {
                whole if WHOLE_TRACES.contains(&whole) => String::new(),
                // It takes no number.
                "gst_dip" => random_boundary(&mut r, 3).replace("3.0", "\"mirror\""),
                _ => random_boundary(&mut r, 3),
            };
            // Of two outputs one is compared.
            let then = if lines.contains("[2, 0]") || lines.contains("[0, 1]") { ONE } else { "" };
            let steps = format!("[[step]]\nop = \"{op}\"\n{lines}\n{boundary}\n{then}");
            let mut want = None;
            halostream::simd::both_paths(|_| {
                let case = Case::new(&mut r, "attribute", &[("x", &x)]);
                let whole = alone(&case, &steps, &shape);
                case.expect(&steps, "", want.get_or_insert(whole));
            });
        }
    }
}

#[test]
fn attributes_of_a_filtered_cube_equal_three_whole_array_calls_of_scipy() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/seismic.json");
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(path).expect("golden values")).expect("JSON");
    let x = Array::new::<f32>(&[3, 4, 24], &bytemuck::pod_collect_to_vec::<u8, f32>(&hex(&golden["inputs"]["f32"]["values"])));
    let want: Vec<f32> = bytemuck::pod_collect_to_vec(&hex(&golden["chain"]["want"]));
    let steps = "[[step]]\nop = \"gaussian_filter\"\nsigma = [0.8, 0, 1.5]\nboundary = \"mirror\"\n\
                 [[step]]\nop = \"envelope\"\n\
                 [[step]]\nop = \"semblance_coherence\"\naperture = [3, 3, 5]\n";
    let mut r = Random(32);
    let mut first: Option<Array> = None;
    for _ in 0..8 {
        let case = Case::new(&mut r, "filtered", &[("x", &x)]);
        case.run(steps, "");
        let got = case.result();
        for (g, w) in got.values::<f32>().iter().zip(&want) {
            assert!((g - w).abs() <= 1e-6, "{g}, scipy has {w}\n{}", case.job(steps, ""));
        }
        assert_eq!(first.get_or_insert(got.clone()), &got);
    }
}
