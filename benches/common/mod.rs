//! What the benches share: medians with their spread, CPU time, and when to run at all.
#![allow(dead_code)]

use std::time::Instant;

/// `cargo test --all-targets` runs benches too, without the flag that `cargo bench` gives: then there is nothing to do.
pub fn is_bench() -> bool {
    std::env::args().any(|a| a == "--bench")
}

/// Runs of which the median is taken; `HALOSTREAM_BENCH_RUNS` changes it.
pub fn runs() -> usize {
    std::env::var("HALOSTREAM_BENCH_RUNS").ok().and_then(|n| n.parse().ok()).filter(|n| *n > 0).unwrap_or(5)
}

/// Seconds: median, least and most.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { median: values[values.len() / 2], least: values[0], most: values[values.len() - 1] }
    }
}

/// User and system seconds of this process so far.
pub fn cpu_seconds() -> f64 {
    // SAFETY: getrusage fills the struct that it is given.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Wall and CPU seconds of a few runs after one to warm up.
pub fn time(mut work: impl FnMut()) -> (Spread, Spread) {
    work();
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..runs() {
        let (since, before) = (Instant::now(), cpu_seconds());
        work();
        wall.push(since.elapsed().as_secs_f64());
        cpu.push(cpu_seconds() - before);
    }
    (Spread::of(wall), Spread::of(cpu))
}

/// GB/s of a memcpy of 256 MiB on one thread: what every rate is held against.
pub fn memcpy_rate() -> f64 {
    let from = vec![1u8; 256 << 20];
    let mut to = vec![2u8; 256 << 20];
    let (wall, _) = time(|| std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from)));
    from.len() as f64 / wall.median / 1e9
}

pub fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or("?").to_owned()
}
