//! The InSAR chain against naive float64 forms, and in one pass against one job after the other.

use std::path::Path;

use num_complex::{Complex32, Complex64};

use crate::common::{Array, Folder, Random, read, run};
use crate::{Case, naive_k};

/// Amplitudes, some tied; some pixels zero, some with a NaN.
fn stack(r: &mut Random, shape: [u64; 3]) -> Vec<Complex32> {
    let mut z = Vec::new();
    for _ in 0..shape[0] * shape[1] {
        let kind = r.range(0, 19);
        let scale = if r.range(0, 2) == 0 { 3.0 } else { 1.0 };
        let nan = r.range(0, shape[2] - 1);
        for image in 0..shape[2] {
            z.push(match kind {
                0 => Complex32::ZERO,
                1 if image == nan => Complex32::new(f32::NAN, 1.0),
                2 => Complex32::new(r.range(0, 2) as f32, 1.0),
                _ => Complex32::new((r.signed() * scale) as f32, (r.signed() * scale) as f32),
            });
        }
    }
    z
}

/// (azimuth, range, image) with the images first.
fn images_first(shape: [u64; 3], z: &[Complex32]) -> Array {
    let (pixels, n) = ((shape[0] * shape[1]) as usize, shape[2] as usize);
    let values: Vec<Complex32> = (0..n).flat_map(|image| (0..pixels).map(move |p| z[p * n + image])).collect();
    Array::new(&[shape[2], shape[0], shape[1]], &values)
}

/// What a pixel's window selects, by definition.
struct Naive<'a> {
    shape: [u64; 3],
    half: [u64; 2],
    z: &'a [Complex32],
}

impl Naive<'_> {
    fn pixel(&self, y: i64, x: i64) -> Option<&[Complex32]> {
        let n = self.shape[2] as usize;
        let inside = (0..self.shape[0] as i64).contains(&y) && (0..self.shape[1] as i64).contains(&x);
        inside.then(|| &self.z[(y as usize * self.shape[1] as usize + x as usize) * n..][..n])
    }

    /// Neighbours in C order of the window.
    fn window(&self, y: i64, x: i64) -> Vec<Option<&[Complex32]>> {
        let (a, r) = (self.half[0] as i64, self.half[1] as i64);
        (-a..=a).flat_map(|dy| (-r..=r).map(move |dx| (dy, dx))).map(|(dy, dx)| self.pixel(y + dy, x + dx)).collect()
    }

    fn selected(&self, y: i64, x: i64, alpha: f64, rejected: bool) -> Vec<bool> {
        let sorted = |pixel: &[Complex32]| {
            let mut v: Vec<f32> = pixel.iter().map(|c| (c.re as f64).hypot(c.im as f64) as f32).collect();
            let is_valid = v.iter().all(|v| !v.is_nan());
            v.sort_by(f32::total_cmp);
            is_valid.then_some(v)
        };
        let own = self.pixel(y, x).and_then(sorted);
        let cell = |other: &Option<&[Complex32]>| {
            let (Some(u), Some(v)) = (&own, other.and_then(sorted)) else { return false };
            let p = p_of(naive_k(u, &v), u.len()) as f32;
            if rejected { p < alpha as f32 } else { p >= alpha as f32 }
        };
        self.window(y, x).iter().map(cell).collect()
    }

    fn coherence(&self, y: i64, x: i64, selected: &[bool], i: usize, j: usize) -> Complex64 {
        let wide = |c: Complex32| Complex64::new(c.re as f64, c.im as f64);
        let (mut sum, mut first, mut second) = (Complex64::ZERO, 0.0, 0.0);
        for (pixel, _) in self.window(y, x).iter().zip(selected).filter(|(_, s)| **s) {
            let Some(pixel) = pixel else { continue };
            sum += wide(pixel[i]) * wide(pixel[j]).conj();
            first += wide(pixel[i]).norm_sqr();
            second += wide(pixel[j]).norm_sqr();
        }
        sum / (first.sqrt() * second.sqrt())
    }
}

/// The Kolmogorov series with Stephens' correction, by the book; one at distance zero.
fn p_of(k: u8, n: usize) -> f64 {
    let en = (n as f64 / 2.0).sqrt();
    let x = (en + 0.12 + 0.11 / en) * k as f64 / n as f64;
    let series: f64 = (1..=100).map(|i| if i % 2 == 1 { 2.0 } else { -2.0 } * (-2.0 * x * x * (i * i) as f64).exp()).sum();
    if k == 0 { 1.0 } else { series }
}

/// 4-D neighbours that the middle reaches over sides and corners.
fn connected(cells: &[bool], height: usize, breadth: usize) -> Vec<bool> {
    let middle = (height / 2) * breadth + breadth / 2;
    let mut kept = vec![false; cells.len()];
    kept[middle] = cells[middle];
    loop {
        let before = kept.clone();
        for at in 0..cells.len() {
            let near = |to: usize| (at / breadth).abs_diff(to / breadth) <= 1 && (at % breadth).abs_diff(to % breadth) <= 1;
            kept[at] |= cells[at] && (0..cells.len()).any(|to| before[to] && near(to));
        }
        if kept == before {
            return kept;
        }
    }
}

/// Shapes at the limits first: image smaller than the window, two images, many images.
fn shapes(r: &mut Random, round: usize) -> ([u64; 3], [u64; 2]) {
    match round {
        0 => ([2, 3, 5], [3, 4]),
        1 => ([5, 6, 2], [1, 2]),
        2 => ([2, 3, 254], [1, 1]),
        3 => ([1, 1, 3], [0, 0]),
        _ => ([r.range(1, 9), r.range(1, 9), r.range(2, 9)], [r.range(0, 3), r.range(0, 2)]),
    }
}

#[test]
fn masks_counts_and_coherence_equal_their_definitions() {
    let mut r = Random(20);
    for round in 0..12 {
        let (shape, half) = shapes(&mut r, round);
        let z = stack(&mut r, shape);
        let naive = Naive { shape, half, z: &z };
        let (alpha, rejected) = (*r.pick(&[0.05, 0.3, 0.7]), round % 3 == 2);
        let is_connected = round % 4 == 1;
        let is_full = round % 2 == 1;
        let min_count = r.range(0, 4) as i32;
        let dates_first = round % 5 == 4;
        let (height, breadth) = (2 * half[0] + 1, 2 * half[1] + 1);
        let n = shape[2] as usize;

        let (mut masks, mut counts, mut coherence) = (Vec::new(), Vec::new(), Vec::new());
        for y in 0..shape[0] as i64 {
            for x in 0..shape[1] as i64 {
                let mut cells = naive.selected(y, x, alpha, rejected);
                if is_connected {
                    cells = connected(&cells, height as usize, breadth as usize);
                }
                let count = cells.iter().filter(|c| **c).count() as i32;
                counts.push(count);
                masks.extend(cells.chunks(8).map(|bits| bits.iter().enumerate().fold(0u8, |b, (i, c)| b | u8::from(*c) << i)));
                for i in 0..n {
                    for j in if is_full { 0..n } else { i + 1..n } {
                        let value = match count < min_count.max(1) {
                            true => Complex64::new(f64::NAN, f64::NAN),
                            false => naive.coherence(y, x, &cells, i, j),
                        };
                        coherence.push(value);
                    }
                }
            }
        }
        let array = if dates_first { images_first(shape, &z) } else { Array::new(&shape, &z) };
        let axis = if dates_first { "image_axis = 0" } else { "" };
        let rule = if rejected { "rejected" } else { "not-rejected" };
        let layout = if is_full { "full" } else { "pairs" };
        let steps = format!(
            "[[step]]\nop = \"ks_test\"\nhalf_window = {half:?}\n{axis}\n[[step]]\nop = \"select_shp\"\nalpha = {alpha}\n\
             rule = \"{rule}\"\nconnected = {is_connected}\n"
        );
        let co = format!(
            "[[step]]\nop = \"coherence\"\ninputs = [\"x\", \"select_shp\"]\nlayout = \"{layout}\"\nmin_count = {min_count}\n{axis}\n"
        );
        halostream::simd::both_paths(|_| {
            let bytes = (height * breadth).div_ceil(8);
            let mask = Array::new(&[shape[0], shape[1], bytes], &masks);
            Case::new(&mut r, "mask", &[("x", &array)]).expect(&steps, "from = \"select_shp.mask\"", &mask);
            let count = Array::new(&[shape[0], shape[1]], &counts);
            Case::new(&mut r, "count", &[("x", &array)]).expect(&steps, "from = \"select_shp.count\"", &count);
            let case = Case::new(&mut r, "coherence", &[("x", &array)]);
            case.run(&format!("{steps}{co}"), "");
            let got = case.result().values::<Complex32>();
            assert_eq!(got.len(), coherence.len());
            for (at, (got, want)) in got.iter().zip(&coherence).enumerate() {
                let is_same =
                    got.re.is_nan() && want.re.is_nan() || (Complex64::new(got.re as f64, got.im as f64) - want).norm() < 2e-7;
                assert!(is_same, "{got} for {want} at {at}, round {round}\n{}", case.job(&format!("{steps}{co}"), ""));
            }
        });
    }
}

/// Runs steps over named inputs into named outputs of a folder.
fn chain(folder: &Folder, inputs: &[(&str, &str)], steps: &str, outputs: &[(&str, &str)], engine: &str) {
    let mut job = String::new();
    inputs.iter().for_each(|(name, path)| job += &format!("[inputs.{name}]\npath = \"{path}\"\n"));
    job += steps;
    outputs.iter().for_each(|(path, from)| job += &format!("[outputs.{path}]\npath = \"{path}.zarr\"\nfrom = \"{from}\"\n"));
    job += engine;
    run(&job, &folder.0).unwrap_or_else(|e| panic!("{e}\n--- job:\n{job}"));
}

#[test]
fn one_pass_gives_the_bytes_of_one_job_after_the_other() {
    let mut r = Random(21);
    for round in 0..6 {
        let shape = [r.range(3, 16), r.range(3, 16), r.range(3, 7)];
        let z = stack(&mut r, shape);
        let x = if round % 2 == 0 { Array::new(&shape, &z) } else { images_first(shape, &z) };
        let axis = if round % 2 == 0 { "" } else { "image_axis = 0\n" };
        let layout = if round % 3 == 2 { "full" } else { "pairs" };
        let linker = if round == 3 { "evd" } else { "emi" };
        let beta = if round == 4 { "beta = \"adaptive\"\n" } else { "" };
        let weighted = round % 2 == 1;
        let step = |op: &str, inputs: &[&str], lines: &str| format!("[[step]]\nop = \"{op}\"\ninputs = {inputs:?}\n{lines}");
        let ks = format!("half_window = [{}, {}]\n{axis}", r.range(0, 3), r.range(0, 3));
        let select = "alpha = 0.2\n";
        let co = format!("min_count = 2\nlayout = \"{layout}\"\n{axis}");
        let link = format!("ref = -1\n{beta}");
        let t = format!("weighted = {weighted}\n");
        let looks = |from: &'static str| if weighted { vec![from] } else { vec![] };
        let engine = |r: &mut Random| {
            format!(
                "[engine]\nblock = {:?}\nworkers = {}\nmemory = \"64MiB\"\n",
                x.shape.iter().map(|n| r.range(1, *n)).collect::<Vec<_>>(),
                r.range(1, 3)
            )
        };

        let case = Case::new(&mut r, "chain", &[("x", &x)]);
        let folder = &case.folder;
        let (phase, quality) = (format!("{linker}.phase"), format!("{linker}.quality"));
        let steps = [
            step("ks_test", &["x"], &ks),
            step("select_shp", &["ks_test.p"], select),
            step("coherence", &["x", "select_shp"], &co),
            step(linker, &["coherence"], &link),
            step("temporal_coherence", &[&["coherence", linker], &looks("select_shp")[..]].concat(), &t),
        ];
        let outputs = [("count", "select_shp.count"), ("phase", &phase), ("quality", &quality), ("t", "temporal_coherence")];
        let fused_engine = engine(&mut r);
        chain(folder, &[("x", "x.zarr")], &steps.concat(), &outputs, &fused_engine);

        let alone = |r: &mut Random, inputs: &[(&str, &str)], step: String, outputs: &[(&str, &str)]| {
            let engine = format!("[engine]\nworkers = {}\nmemory = \"64MiB\"\n", r.range(1, 3));
            chain(folder, inputs, &step, outputs, &engine);
        };
        alone(&mut r, &[("x", "x.zarr")], step("ks_test", &["x"], &ks), &[("a-k", "ks_test.k"), ("a-p", "ks_test.p")]);
        // Counts and p values select alike.
        let test = if round % 2 == 0 { "a-k.zarr" } else { "a-p.zarr" };
        let outputs = [("a-mask", "select_shp.mask"), ("a-count", "select_shp.count")];
        alone(&mut r, &[("k", test)], step("select_shp", &["k"], select), &outputs);
        alone(&mut r, &[("x", "x.zarr"), ("m", "a-mask.zarr")], step("coherence", &["x", "m"], &co), &[("a-co", "coherence")]);
        alone(&mut r, &[("c", "a-co.zarr")], step(linker, &["c"], &link), &[("a-phase", &phase), ("a-quality", &quality)]);
        let inputs = [("c", "a-co.zarr"), ("p", "a-phase.zarr"), ("n", "a-count.zarr")];
        let last = step("temporal_coherence", &[&["c", "p"], &looks("n")[..]].concat(), &t);
        alone(&mut r, &inputs[..if weighted { 3 } else { 2 }], last, &[("a-t", "temporal_coherence")]);

        let bytes = |name: &str| read(Path::new(&folder.path(&format!("{name}.zarr"))), None);
        for name in ["count", "phase", "quality", "t"] {
            assert_eq!(bytes(name), bytes(&format!("a-{name}")), "{name}, round {round}, {fused_engine}");
        }
        let found = bytes("quality").values::<f32>();
        assert!(round == 0 || found.iter().any(|q| !q.is_nan()), "round {round} shows nothing");
    }
}

#[test]
fn multilooked_cells_need_not_fit_blocks_or_chunks() {
    let mut r = Random(23);
    for round in 0..12 {
        let shape = [r.range(4, 23), r.range(4, 23), r.range(2, 4)];
        let looks = [r.range(1, 4), r.range(1, 4)];
        let z = stack(&mut r, shape);
        let n = shape[2] as usize;
        let cells = [shape[0] / looks[0], shape[1] / looks[1]];
        let mut want = Vec::new();
        for cell in 0..cells[0] * cells[1] {
            let (row, col) = (cell / cells[1] * looks[0], cell % cells[1] * looks[1]);
            let pixels: Vec<&[Complex32]> = (0..looks[0] * looks[1])
                .map(|l| &z[((row + l / looks[1]) * shape[1] + col + l % looks[1]) as usize * n..][..n])
                .collect();
            for i in 0..n {
                for j in i + 1..n {
                    let wide = |c: Complex32| Complex64::new(c.re as f64, c.im as f64);
                    let sum: Complex64 = pixels.iter().map(|p| wide(p[i]) * wide(p[j]).conj()).sum();
                    let power = |i: usize| pixels.iter().map(|p| wide(p[i]).norm_sqr()).sum::<f64>();
                    want.push(sum / (power(i) * power(j)).sqrt());
                }
            }
        }
        let is_first = round % 2 == 1;
        let array = if is_first { images_first(shape, &z) } else { Array::new(&shape, &z) };
        let axis = if is_first { "image_axis = 0" } else { "" };
        let case = Case::new(&mut r, "multilook", &[("x", &array)]);
        case.run(&format!("[[step]]\nop = \"multilook\"\nlooks = {looks:?}\n{axis}"), "");
        let (got, pairs) = (case.result(), n * (n - 1) / 2);
        let pixels = (cells[0] * cells[1]) as usize;
        let p = pairs as u64;
        assert_eq!(got.shape, if is_first { [p, cells[0], cells[1]] } else { [cells[0], cells[1], p] });
        let got = got.values::<Complex32>();
        for (at, want) in want.iter().enumerate() {
            let got = got[if is_first { at % pairs * pixels + at / pairs } else { at }];
            let is_same =
                got.re.is_nan() && want.re.is_nan() || (Complex64::new(got.re as f64, got.im as f64) - want).norm() < 2e-7;
            assert!(is_same, "{got} for {want} at {at}\n{}", case.job("multilook", ""));
        }
    }
}

#[test]
fn dispersion_and_interferograms_do_not_depend_on_the_grid() {
    let mut r = Random(22);
    for _ in 0..6 {
        let shape = [r.range(1, 9), r.range(1, 9), r.range(2, 6)];
        let z = stack(&mut r, shape);
        let n = shape[2] as usize;
        let wide = |c: Complex32| Complex64::new(c.re as f64, c.im as f64);
        let dispersion = |pixel: &[Complex32]| {
            let a: Vec<f64> = pixel.iter().map(|c| wide(*c).norm_sqr().sqrt() as f32 as f64).collect();
            let mean = a.iter().sum::<f64>() / n as f64;
            let variance = a.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
            (variance.sqrt() / mean) as f32
        };
        let x = images_first(shape, &z);
        let case = Case::new(&mut r, "dispersion", &[("x", &x)]);
        case.run("[[step]]\nop = \"amplitude_dispersion\"\nimage_axis = 0", "");
        let got = case.result();
        assert_eq!(got.shape, shape[..2]);
        for (got, pixel) in got.values::<f32>().iter().zip(z.chunks(n)) {
            let want = dispersion(pixel);
            assert!(*got == want || got.is_nan() && want.is_nan(), "{got} for {want}");
        }

        let last = n - 1;
        let product = |a: Complex32, b: Complex32| {
            let (a, b) = (wide(a), wide(b));
            Complex32::new((a.re * b.re + a.im * b.im) as f32, (a.im * b.re - a.re * b.im) as f32)
        };
        let case = Case::new(&mut r, "interferogram", &[("x", &Array::new(&shape, &z))]);
        case.run(&format!("[[step]]\nop = \"interferogram\"\npairs = [[{last}, 0], [0, {last}]]"), "");
        let got = case.result().values::<Complex32>();
        for (got, pixel) in got.chunks(2).zip(z.chunks(n)) {
            for (got, want) in got.iter().zip([product(pixel[last], pixel[0]), product(pixel[0], pixel[last])]) {
                assert!(*got == want || got.is_nan() && want.is_nan(), "{got} for {want}");
            }
        }
    }
}
