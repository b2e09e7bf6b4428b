//! The kernels of `ks_test` against the CPU operator, on whatever devices tests have.

use num_complex::{Complex32, Complex64};

use super::super::testing::{Random, Whole, bind, map, padded, values};
use super::*;
use crate::array::{Element, Scalar};
use crate::compute::gpu::Device;
use crate::compute::gpu::shim;
use crate::operators::DevicePart;

/// The outputs of a core, computed part by part on a device; a part is at most `most` rows and columns.
fn on_device(device: &mut dyn Device, bound: &Binding, whole: &Whole, core: &Region, most: i64) -> Vec<Block> {
    let Kind::Map(operator) = &bound.kind else { panic!("a map") };
    let entry = operator.device().expect("a kernel");
    let given = padded(whole, &bound.inputs[0], core);
    let regions: Vec<Region> = bound.outputs.iter().map(|o| super::super::testing::output_region(&o.axes, core)).collect();
    let mut outputs: Vec<Option<Buffer>> =
        bound.outputs.iter().zip(&regions).map(|(o, r)| Some(Buffer::loose(r.count() * o.dtype.size()))).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let task = MapTask { number: 0, core, outputs: &regions, wanted: &[true; 3], worker: 0 };
    let mut parts = vec![core.clone()];
    while let Some(part) = parts.pop() {
        let spatial = (0..3).filter(|a| !bound.whole.contains(a));
        if spatial.clone().any(|a| part.len(a) as i64 > most) {
            parts.extend(entry.split(&part).expect("longer than one"));
            continue;
        }
        let needs = entry.needs(std::slice::from_ref(&given.region), &part);
        let job = entry.job(&needs, &part).expect("small numbers");
        let cut = given.block.cut(&given.region, &needs[0]);
        let mut input = vec![0; cut.byte_len()];
        cut.copy_to(&mut input);
        let mut staging = vec![0; job.staging_bytes()];
        for (i, bytes) in shim::run(device, &job, &[&input]).unwrap().into_iter().enumerate() {
            staging[job.staged(1 + i)].copy_from_slice(&bytes);
        }
        let done = DevicePart { core: &part, needs: &needs, job: &job };
        let lease = crate::array::Account::unbounded("test").try_lease(entry.scratch_bytes()).expect("unbounded");
        entry.finish(&done, &staging, &task, &mut outputs, &mut Workspace::new(lease, &stop)).unwrap();
    }
    let blocks = outputs.into_iter().zip(&bound.outputs).zip(&regions);
    blocks.map(|((b, o), r)| Block::new(b.expect("made above"), o.dtype, r.shape())).collect()
}

/// A core on every device, in one part and in several, against the CPU's bytes.
fn check(whole: &Whole, lines: &str, core: &Region) {
    let bound = bind("ks_test", lines, &[whole]).unwrap();
    let want = map(&bound, &[whole], core, &[true; 3]).unwrap();
    for (name, mut device) in crate::compute::gpu::test_devices() {
        for most in [i64::MAX, 7] {
            let got = on_device(device.as_mut(), &bound, whole, core, most);
            for ((got, want), output) in got.iter().zip(&want).zip(&bound.outputs) {
                let want = values::<u8>(want.as_ref().expect("wanted"));
                assert!(values::<u8>(got) == want, "{} on {name}, {lines}, core {core}, parts of {most}", output.name);
            }
        }
    }
}

/// Quantised, so that ties happen; a NaN now and then.
fn stack(random: &mut Random, count: usize, has_nan: bool) -> Vec<f32> {
    let mut value = || if has_nan && random.below(150) == 0 { f32::NAN } else { (random.unit() * 12.0).floor() as f32 * 0.25 };
    (0..count).map(|_| value()).collect()
}

#[test]
fn counts_of_complex_stacks_are_the_cpus_i9() {
    let mut random = Random::new(31);
    let shape = [9, 140, 17];
    let parts = stack(&mut random, 2 * 9 * 140 * 17, true);
    let z: Vec<Complex32> = parts.chunks(2).map(|p| Complex32::new(p[0], p[1])).collect();
    let whole = Whole::new(Block::from_values(&shape, &z));
    check(&whole, "half_window = [2, 3]", &Region::whole(&[9, 140, 17]));
    check(&whole, "half_window = [1, 20]\nconvention = \"decorrelation\"", &Region::from_ranges(&[(3, 7), (11, 139), (0, 17)]));
    let wide: Vec<Complex64> = z.iter().take(5 * 12 * 16).map(|z| Complex64::new(z.re.into(), z.im.into())).collect();
    check(&Whole::new(Block::from_values(&[5, 12, 16], &wide)), "half_window = [2, 1]", &Region::whole(&[5, 12, 16]));
}

#[test]
fn many_images_are_sorted_in_shared_memory_i9() {
    let mut random = Random::new(32);
    for images in [40, 254] {
        let data = stack(&mut random, 4 * 6 * images, false);
        let core = Region::whole(&[4, 6, images as u64]);
        if images == 40 {
            let z: Vec<Complex32> = data.iter().map(|v| Complex32::new(*v, 0.0)).collect();
            check(&Whole::new(Block::from_values(&[4, 6, images], &z)), "half_window = [1, 2]", &core);
        } else {
            let data: Vec<f64> = data.iter().map(|v| f64::from(*v)).collect();
            check(&Whole::new(Block::from_values(&[4, 6, images], &data)), "half_window = [1, 2]", &core);
        }
    }
}

#[test]
fn every_dtype_and_missing_values_i9() {
    let mut random = Random::new(33);
    let data = stack(&mut random, 6 * 11 * 5, false);
    fn integers<T: Element>(data: &[f32], missing: bool, of: impl Fn(f32) -> T) -> Whole {
        let values: Vec<T> = data.iter().map(|v| of(*v * 4.0)).collect();
        let mut whole = Whole::new(Block::from_values(&[6, 11, 5], &values));
        whole.meta.missing = missing.then(|| Scalar::of(of(3.0)));
        whole
    }
    let core = Region::from_ranges(&[(1, 6), (0, 10), (0, 5)]);
    let lines = "half_window = [2, 2]";
    check(&integers(&data, true, |v| v as i8 - 3), lines, &core);
    check(&integers(&data, true, |v| v as u16 + 60_000), lines, &core);
    check(&integers(&data, false, |v| v as i16 - 20), lines, &core);
    check(&integers(&data, true, |v| v as i32 - (1 << 30)), lines, &core);
    check(&integers(&data, true, |v| v as u32 | 0x8000_0000), lines, &core);
    let mut halves = integers(&data, false, |v| half::f16::from_f32_const(v - 6.0));
    check(&halves, lines, &core);
    // Subnormal, infinite and NaN halves.
    let odd: Vec<half::f16> = data
        .iter()
        .enumerate()
        .map(|(i, v)| half::f16::from_bits(if i == 200 { 0x7e01 } else { [(*v * 9.0) as u16, 0x8003, 0x7c00][i % 3] }))
        .collect();
    halves.block = Block::from_values(&[6, 11, 5], &odd);
    check(&halves, lines, &core);
    let bytes: Vec<u8> = data.iter().take(4 * 5).map(|v| *v as u8).collect();
    check(&Whole::new(Block::from_values(&[4, 5, 1], &bytes)), lines, &Region::whole(&[4, 5, 1]));
}

#[test]
fn image_axes_strided_blocks_and_large_windows_i9() {
    let mut random = Random::new(34);
    let whole = Whole::new(Block::from_values(&[6, 9, 17], &stack(&mut random, 6 * 9 * 17, true)));
    let mut turned = Whole::new(whole.block.transposed(&[2, 0, 1]));
    turned.meta.shape = vec![17, 6, 9];
    check(&turned, "half_window = [1, 2]\nimage_axis = 0", &Region::from_ranges(&[(0, 17), (1, 5), (2, 9)]));
    // Few rows under a high window: cheaper by all offsets than by the forward half.
    check(&whole, "half_window = [5, 1]", &Region::from_ranges(&[(5, 6), (0, 9), (0, 17)]));
    check(&whole, "half_window = [40, 70]", &Region::from_ranges(&[(2, 5), (0, 9), (0, 17)]));
    check(&whole, "half_window = [0, 0]", &Region::whole(&[6, 9, 17]));
}

/// The kernels alone and the copies alone, on a GPU: what a run of `.ci/gpu.sh` writes down.
#[test]
#[ignore = "for .ci/gpu.sh"]
fn time_of_kernels_and_copies() {
    use crate::compute::gpu::cuda::CudaPinner;
    use crate::compute::gpu::{Pinner, Queue};
    let Some(mut device) = crate::compute::gpu::test_gpu() else { return shim::skipped("no GPU here") };
    let shape = [2500u64, 1834, 17];
    let input = StepInput { meta: crate::operators::ArrayMeta::plain("slc", &shape, DType::C64), boundary: None, depth: None };
    let bound = super::super::testing::bind_inputs("ks_test", "half_window = 5", &[input]).unwrap();
    let Kind::Map(map) = &bound.kind else { panic!("a map") };
    let entry = map.device().unwrap();
    let whole = Region::whole(&shape);
    let job = entry.job(&entry.needs(std::slice::from_ref(&whole), &whole), &whole).unwrap();
    let pinner = CudaPinner::new(crate::compute::device::devices().unwrap()).expect("the device opens");
    let mut host = pinner.pin(job.staging_bytes()).expect("host memory");
    let mut random = Random::new(35);
    for z in host.bytes_mut()[job.staged(0)].chunks_exact_mut(4) {
        z.copy_from_slice(&(random.unit() as f32 - 0.5).to_le_bytes());
    }
    device.prepare(&job.program).unwrap();
    let sizes = job.sizes().map(crate::compute::gpu::job::rounded);
    let buffers: Vec<_> = sizes.map(|n| device.alloc(n).unwrap()).collect();
    let mut best = [f64::MAX; 3];
    for _ in 0..7 {
        // SAFETY: everything outlives `quiesce`; the job fits its kernels.
        let times = unsafe {
            let mut timed = |work: &mut dyn FnMut(&mut dyn Device, &mut [u8])| {
                let since = std::time::Instant::now();
                work(&mut device, host.bytes_mut());
                device.quiesce();
                since.elapsed().as_secs_f64() * 1e3
            };
            [
                timed(&mut |d, host| d.upload(&host[job.staged(0)], buffers[0]).unwrap()),
                timed(&mut |d, _| job.launches.iter().for_each(|l| d.launch(&job.program, l, &buffers).unwrap())),
                timed(&mut |d, host| (0..2).for_each(|i| d.download(buffers[1 + i], &mut host[job.staged(1 + i)]).unwrap())),
            ]
        };
        best = std::array::from_fn(|i| best[i].min(times[i]));
    }
    let mark = device.mark(Queue::Download).unwrap();
    assert!(device.is_passed(mark).unwrap(), "nothing is under way");
    let rate = |bytes: usize, ms: f64| bytes as f64 / ms / 1e6;
    println!("figure: best of 7; upload   {:8.2} ms  {:6.1} GB/s", best[0], rate(job.inputs[0], best[0]));
    println!("figure:            kernels  {:8.2} ms", best[1]);
    println!("figure:            download {:8.2} ms  {:6.1} GB/s", best[2], rate(job.outputs.iter().sum(), best[2]));
}

#[test]
fn jobs_state_their_memory_and_refuse_what_leaves_a_kernel() {
    let data = Whole::new(Block::from_values(&[1, 1, 17], &[Complex32::new(1.0, 0.0); 17]));
    let mut meta = data.meta.clone();
    meta.shape = vec![1 << 40, 1 << 40, 17];
    let input = StepInput { meta, boundary: None, depth: None };
    let bound = super::super::testing::bind_inputs("ks_test", "half_window = 5", &[input]).unwrap();
    let Kind::Map(map) = &bound.kind else { panic!("a map") };
    let entry = map.device().unwrap();
    let image = (0, 17);
    let given = [Region::from_ranges(&[(0, 1 << 40), (0, 1 << 40), image])];
    let job = |rows: i64, cols: i64| {
        let part = Region::from_ranges(&[(100, 100 + rows), (100, 100 + cols), image]);
        entry.job(&entry.needs(&given, &part), &part)
    };
    let pixels = |rows: usize, cols: usize| (rows + 10) * (cols + 10);
    let found = job(64, 256).unwrap();
    assert_eq!(found.inputs, [pixels(64, 256) * 17 * 8]);
    // The forward half of the window, for five rows more than the part has.
    assert_eq!(found.outputs, [(64 + 5) * 60 * (256 + 10), pixels(64, 256)]);
    assert_eq!(found.scratch, [pixels(64, 256) * 17 * 4]);
    assert!(job(1 << 20, 1 << 20).is_none() && job(1 << 39, 1 << 39).is_none() && job(1, 1 << 36).is_none());
    let one = Region::from_ranges(&[(5, 6), (7, 8), image]);
    assert!(entry.split(&one).is_none());
    let [low, high] = entry.split(&Region::from_ranges(&[(5, 6), (7, 12), image])).unwrap();
    assert_eq!((low.axis(1), high.axis(1), low.axis(0)), ((7, 9), (9, 12), (5, 6)));
}
