//! The kernels of `ks_test` against the CPU operator, on whatever devices tests have.

use num_complex::{Complex32, Complex64};

use super::super::testing::{Random, Whole, bind, check_on_devices, map, values};
use super::*;
use crate::array::{Element, Scalar};
use crate::compute::gpu::job::{Arg, Job, Launch};
use crate::compute::gpu::kernels::Kernel;
use crate::compute::gpu::{Device, shim};
use crate::operators::DevicePart;

fn check(whole: &Whole, lines: &str, core: &Region) {
    check_on_devices("ks_test", lines, whole, core);
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

/// What one writes first, to compare with: see the file.
static PLAIN: Kernel =
    Kernel { name: "plain", source: include_str!("plain.cu"), entries: &["plain_sort", "plain_count"], variants: Vec::new };

/// k of a whole stack (row, column, image) by the plain kernels. Buffers: stack, k, sorted samples, invalid pixels.
fn plain_job(shape: [usize; 3], half: (usize, usize)) -> Job {
    let [rows, cols, images] = shape;
    let (pixels, window) = (rows * cols, (2 * half.0 + 1) * (2 * half.1 + 1));
    let defines = vec![("IMAGES", images.to_string()), ("DTYPE", "DTYPE_C64".to_owned()), ("KEY", "float".to_owned())];
    let launch = |entry, threads: usize, args| Launch { entry, blocks: threads.div_ceil(256) as u32, threads: 256, args };
    let [stack, k, sorted, invalid] = [0, 1, 2, 3].map(Arg::Buffer);
    let sizes = [rows as i64, cols as i64].map(Arg::I64);
    Job {
        program: PLAIN.program(defines),
        inputs: vec![pixels * images * 8],
        outputs: vec![pixels * window],
        scratch: vec![pixels * images * 4, pixels],
        launches: vec![
            launch("plain_sort", pixels, vec![stack, sorted, invalid, Arg::I64(pixels as i64)]),
            launch(
                "plain_count",
                pixels * window,
                vec![sorted, invalid, k, sizes[0], sizes[1], Arg::I32(half.0 as i32), Arg::I32(half.1 as i32)],
            ),
        ],
    }
}

#[test]
fn the_plain_kernels_count_the_same() {
    let mut random = Random::new(36);
    let shape = [8, 21, 17];
    let parts = stack(&mut random, 2 * shape.iter().product::<usize>(), true);
    let z: Vec<Complex32> = parts.chunks(2).map(|p| Complex32::new(p[0], p[1])).collect();
    let whole = Whole::new(Block::from_values(&shape, &z));
    let bound = bind("ks_test", "half_window = [2, 3]", &[&whole]).unwrap();
    let want = map(&bound, &[&whole], &Region::whole(&whole.meta.shape), &[false, false, true]).unwrap();
    let want = values::<u8>(want[2].as_ref().expect("wanted"));
    for (name, mut device) in crate::compute::gpu::test_devices() {
        let got = shim::run(device.as_mut(), &plain_job(shape, (2, 3)), &[bytemuck::cast_slice(&z)]).unwrap();
        assert!(got[0] == want, "{name}");
    }
}

/// The shortest of several runs of some work on a device, in ms.
fn best_ms(device: &mut dyn Device, runs: usize, mut work: impl FnMut(&mut dyn Device)) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..runs {
        let since = std::time::Instant::now();
        work(device);
        device.quiesce();
        best = best.min(since.elapsed().as_secs_f64() * 1e3);
    }
    best
}

/// The kernels alone and the copies alone, on a GPU, beside the plain kernels: what a run of `.ci/gpu.sh` writes down.
#[test]
#[ignore = "for .ci/gpu.sh"]
fn time_of_kernels_and_copies() {
    use crate::compute::gpu::cuda::CudaPinner;
    use crate::compute::gpu::job::rounded;
    use crate::compute::gpu::{Memory, Pinner, Queue};
    let Some(mut device) = crate::compute::gpu::test_gpu() else { return shim::skipped("no GPU here") };
    // A rehearsal has less time.
    let of = std::env::var("HALOSTREAM_BENCH_STACK").unwrap_or_else(|_| "2500,1834,17".to_owned());
    let shape: Vec<u64> = of.split(',').map(|n| n.parse().expect("three lengths")).collect();
    let input = StepInput { meta: crate::operators::ArrayMeta::plain("slc", &shape, DType::C64), boundary: None, depth: None };
    let bound = super::super::testing::bind_inputs("ks_test", "half_window = 5", &[input]).unwrap();
    let Kind::Map(map) = &bound.kind else { panic!("a map") };
    let entry = map.device().unwrap();
    let whole = Region::whole(&shape);
    let needs = entry.needs(std::slice::from_ref(&whole), &whole);
    let job = entry.job(&needs, &whole).unwrap();
    let pinner = CudaPinner::new(crate::compute::device::devices().unwrap()).expect("the device opens");
    let mut host = pinner.pin(job.staging_bytes()).expect("host memory");
    let mut random = Random::new(35);
    for z in host.bytes_mut()[job.staged(0)].chunks_exact_mut(4) {
        z.copy_from_slice(&(random.unit() as f32 - 0.5).to_le_bytes());
    }
    device.prepare(&job.program).unwrap();
    let memory: Vec<Memory> = job.sizes().map(|n| device.alloc(rounded(n)).unwrap()).collect();
    // SAFETY: host memory and buffers outlive `quiesce`, which ends each of these; jobs fit their kernels.
    let upload = |d: &mut dyn Device, host: &[u8]| unsafe { d.upload(&host[job.staged(0)], memory[0]).unwrap() };
    let download = |d: &mut dyn Device, host: &mut [u8]| {
        // SAFETY: as above.
        (0..2).for_each(|i| unsafe { d.download(memory[1 + i], &mut host[job.staged(1 + i)]).unwrap() });
    };
    let launch = |d: &mut dyn Device, job: &Job, launches: &[Launch], memory: &[Memory]| {
        // SAFETY: as above.
        launches.iter().for_each(|l| unsafe { d.launch(&job.program, l, memory).unwrap() });
    };
    let rate = |bytes: usize, ms: f64| bytes as f64 / ms / 1e6;
    let (up, down) = (job.inputs[0], job.outputs.iter().sum::<usize>());
    let ms = best_ms(&mut device, 7, |d| upload(d, host.bytes()));
    println!("figure: upload            {ms:8.2} ms  {:6.1} GB/s, pinned", rate(up, ms));
    for one in &job.launches {
        let ms = best_ms(&mut device, 7, |d| launch(d, &job, std::slice::from_ref(one), &memory));
        println!("figure: {:17} {ms:8.2} ms", one.entry);
    }
    let kernels = best_ms(&mut device, 7, |d| launch(d, &job, &job.launches, &memory));
    println!("figure: both kernels      {kernels:8.2} ms  (target 30 ms)");
    let ms = best_ms(&mut device, 7, |d| download(d, host.bytes_mut()));
    println!("figure: download          {ms:8.2} ms  {:6.1} GB/s, pinned", rate(down, ms));
    let ms = best_ms(&mut device, 7, |d| {
        upload(d, host.bytes());
        download(d, host.bytes_mut());
    });
    println!("figure: copies both ways  {ms:8.2} ms  {:6.1} GB/s, pinned", rate(up + down, ms));

    let plain = plain_job([0, 1, 2].map(|a| shape[a] as usize), (5, 5));
    device.prepare(&plain.program).unwrap();
    let sizes: Vec<usize> = plain.sizes().skip(1).collect();
    let own: Vec<Memory> = sizes.iter().map(|n| device.alloc(rounded(*n)).unwrap()).collect();
    let buffers = [&memory[..1], &own].concat();
    let ms = best_ms(&mut device, 3, |d| launch(d, &plain, &plain.launches, &buffers));
    println!("figure: plain kernels     {ms:8.2} ms  {:6.1} times as long", ms / kernels);

    // The whole stack, cell by cell: the plain kernels' k, and ours as a worker expands it.
    let mut theirs = vec![0u8; plain.outputs[0]];
    // SAFETY: as above.
    unsafe { device.download(own[0], &mut theirs).unwrap() };
    device.quiesce();
    let mark = device.mark(Queue::Download).unwrap();
    assert!(device.is_passed(mark).unwrap(), "nothing is under way");
    let regions: Vec<Region> = bound.outputs.iter().map(|o| super::super::testing::output_region(&o.axes, &whole)).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let task = MapTask { number: 0, core: &whole, outputs: &regions, wanted: &[false, false, true], worker: 0 };
    let lease = crate::array::Account::unbounded("test").try_lease(entry.scratch_bytes()).expect("unbounded");
    let mut outputs = [None, None, Some(Buffer::loose(theirs.len()))];
    let done = DevicePart { core: &whole, needs: &needs, job: &job };
    entry.finish(&done, host.bytes(), &task, &mut outputs, &mut Workspace::new(lease, &stop)).unwrap();
    assert!(outputs[2].as_deref() == Some(&theirs[..]), "the plain kernels count otherwise");
    println!("figure: plain and own kernels agree in all {} cells", theirs.len());
    memory.into_iter().chain(own).for_each(|m| device.free(m));
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
