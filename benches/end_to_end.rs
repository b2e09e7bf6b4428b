//! Whole jobs through the real binary: identity copies beside a copy of the same files, and how time and memory grow with
//! the array, its chunks, the depth of the halo and the workers. Prints Markdown.
//!
//! `cargo bench --bench end_to_end [-- FOLDER]`. Works in a folder of its own below FOLDER (default: the system's temporary
//! folder; put it on a tmpfs or a warm page cache and say so). `HALOSTREAM_BENCH_MIB` sets the size of the array (256).

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use common::Spread;
use serde_json::Value;

struct Bench {
    folder: PathBuf,
    mib: u64,
}

/// What runs of one job took.
struct Figures {
    wall: Spread,
    cpu: f64,
    report: Value,
}

impl Figures {
    fn number(&self, key: &str) -> f64 {
        self.report[key].as_f64().unwrap_or(f64::NAN)
    }

    fn peak_mib(&self) -> f64 {
        self.number("peak_rss_bytes") / (1 << 20) as f64
    }
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn clear(&self, name: &str) {
        let _ = fs::remove_dir_all(self.path(name));
    }

    /// A float32 array of `shape`, uncompressed.
    fn sample(&self, name: &str, shape: &[u64], chunks: &[u64], codec: &str) {
        self.clear(name);
        let list = |v: &[u64]| v.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let status = Command::new(env!("CARGO_BIN_EXE_halostream"))
            .args(["sample", "volume"])
            .arg(self.path(name))
            .args([
                "--shape",
                &list(shape),
                "--chunks",
                &list(chunks),
                "--dtype",
                "float32",
                "--codec",
                codec,
                "--no-sync",
                "--quiet",
            ])
            .status()
            .expect("the binary runs");
        assert!(status.success(), "sample {name}");
    }

    /// Runs a job several times, each from scratch.
    fn run(&self, name: &str, text: &str) -> Figures {
        let job = self.path(&format!("{name}.toml"));
        fs::write(&job, text).expect("a job file");
        let report = self.path(&format!("{name}.json"));
        let (mut walls, mut cpus) = (Vec::new(), Vec::new());
        for n in 0..=common::runs() {
            self.clear("out.zarr");
            let (since, before) = (Instant::now(), children_cpu());
            let status = Command::new(env!("CARGO_BIN_EXE_halostream"))
                .arg("run")
                .arg(&job)
                .args(["--quiet", "--no-sync", "--report"])
                .arg(&report)
                .status()
                .expect("the binary runs");
            assert!(status.success(), "{name}\n{text}");
            if n > 0 {
                walls.push(since.elapsed().as_secs_f64());
                cpus.push(children_cpu() - before);
            }
        }
        let report = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
        Figures { wall: Spread::of(walls), cpu: Spread::of(cpus).median, report }
    }

    fn identity(&self, input: &str, engine: &str) -> String {
        format!("[input]\npath = \"{input}\"\n[output]\npath = \"out.zarr\"\ncodec = \"none\"\n[engine]\n{engine}")
    }

    /// Opens, reads, creates, writes and renames the same files, `threads` at a time: what the job's system calls cost.
    /// Folders are there before.
    fn copy_files(&self, input: &str, threads: usize) -> Spread {
        let mut walls = Vec::new();
        for n in 0..=common::runs() {
            self.clear("copy.zarr");
            let files = files_below(&self.path(input));
            for folder in files.iter().filter_map(|f| f.parent()).collect::<BTreeSet<_>>() {
                fs::create_dir_all(self.path("copy.zarr").join(folder)).expect("a folder");
            }
            let since = Instant::now();
            std::thread::scope(|scope| {
                for t in 0..threads {
                    let (files, to) = (&files, self.path("copy.zarr"));
                    scope.spawn(move || {
                        let mut buffer = Vec::new();
                        for file in files.iter().skip(t).step_by(threads) {
                            copy_one(&self.path(input), &to, file, &mut buffer);
                        }
                    });
                }
            });
            if n > 0 {
                walls.push(since.elapsed().as_secs_f64());
            }
        }
        Spread::of(walls)
    }
}

fn copy_one(from: &Path, to: &Path, file: &Path, buffer: &mut Vec<u8>) {
    use std::io::{Read, Write};
    buffer.clear();
    fs::File::open(from.join(file)).and_then(|mut f| f.read_to_end(buffer)).expect("read");
    let target = to.join(file);
    let partial = target.with_extension("partial");
    fs::File::create(&partial).and_then(|mut f| f.write_all(buffer)).expect("written");
    fs::rename(&partial, &target).expect("renamed");
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(here) = open.pop() {
        for entry in fs::read_dir(here).expect("a folder").flatten() {
            match entry.path() {
                path if path.is_dir() => open.push(path),
                path => found.push(path.strip_prefix(folder).expect("below").to_owned()),
            }
        }
    }
    found.sort();
    found
}

/// CPU seconds of finished children.
fn children_cpu() -> f64 {
    // SAFETY: getrusage fills the struct that it is given.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// A cube of `mib` MiB of float32, side a multiple of 64.
fn cube(mib: u64) -> u64 {
    let side = ((mib << 18) as f64).cbrt() as u64;
    (side / 64).max(1) * 64
}

fn main() {
    if !common::is_bench() {
        return;
    }
    let below = std::env::args().skip(1).find(|a| !a.starts_with("--")).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = below.join(format!("halostream-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let mib = std::env::var("HALOSTREAM_BENCH_MIB").ok().and_then(|n| n.parse().ok()).unwrap_or(256);
    let bench = Bench { folder, mib };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!("load {}, {threads} cores, medians of {}, outputs not synced\n", common::load(), common::runs());
    bench.chunk_sizes(threads);
    bench.array_sizes();
    bench.depths();
    bench.workers(threads);
    let _ = fs::remove_dir_all(&bench.folder);
}

impl Bench {
    fn chunk_sizes(&self, threads: usize) {
        // Large enough for the process's own start and end not to count as chunks' time.
        let mib = 4 * self.mib;
        println!("### Identity by chunk size ({mib} MiB, codec none)\n");
        println!("| chunk | chunks | wall s (least-most) | files alone s | over, us per chunk | peak MiB |");
        println!("| --- | --- | --- | --- | --- | --- |");
        for kib in [32u64, 256, 1024, 4096, 16384, 65536] {
            // Square arrays, chunks as square as powers of two allow.
            let elements = (kib << 10) / 4;
            let rows = 1u64 << (elements.ilog2() / 2);
            let side = (((mib << 20) / 4) as f64).sqrt() as u64;
            let chunks = side.div_ceil(rows) * side.div_ceil(elements / rows);
            self.sample("in.zarr", &[1, side, side], &[1, rows, elements / rows], "none");
            let files = self.copy_files("in.zarr", threads);
            let figures = self.run("identity", &self.identity("in.zarr", ""));
            println!(
                "| {} | {chunks} | {:.3} ({:.3}-{:.3}) | {:.3} | {:.1} | {:.0} |",
                halostream::config::units::format_bytes(kib << 10),
                figures.wall.median,
                figures.wall.least,
                figures.wall.most,
                files.median,
                (figures.wall.median - files.median) * 1e6 / chunks as f64,
                figures.peak_mib()
            );
        }
        println!();
    }

    fn array_sizes(&self) {
        println!("### Intensity by array size (chunks 64^3, memory = 128MiB, codec none)\n");
        println!("| array MiB | wall s | CPU s | CPU ns per element | peak MiB |");
        println!("| --- | --- | --- | --- | --- |");
        for times in [1u64, 4, 16] {
            let side = cube(self.mib / 4);
            self.sample("in.zarr", &[side * times, side, side], &[64, 64, 64], "none");
            let text = "[input]\npath = \"in.zarr\"\n[[step]]\nop = \"intensity\"\n[output]\npath = \"out.zarr\"\ncodec = \"none\"\n\
                        [engine]\nmemory = \"128MiB\"\n";
            let figures = self.run("size", text);
            let elements = (side * side * side * times) as f64;
            println!(
                "| {:.0} | {:.3} | {:.3} | {:.2} | {:.0} |",
                elements * 4.0 / (1 << 20) as f64,
                figures.wall.median,
                figures.cpu,
                figures.cpu * 1e9 / elements,
                figures.peak_mib()
            );
        }
        println!();
    }

    fn depths(&self) {
        println!("### KS test by half window (N = 17, counts only, codec none)\n");
        println!("| half window | wall s | CPU ns per ordered pair | peak MiB |");
        println!("| --- | --- | --- | --- |");
        let (rows, cols) = (400u64, 400u64);
        self.clear("slc.zarr");
        let status = Command::new(env!("CARGO_BIN_EXE_halostream"))
            .args(["sample", "slc"])
            .arg(self.path("slc.zarr"))
            .args(["--shape", "400,400,17", "--chunks", "200,200,17", "--no-sync", "--quiet"])
            .status()
            .expect("the binary runs");
        assert!(status.success());
        for half in [1u64, 2, 5, 8] {
            let text = format!(
                "[input]\npath = \"slc.zarr\"\n[[step]]\nop = \"ks_test\"\nhalf_window = {half}\n[output]\npath = \"out.zarr\"\n\
                 from = \"ks_test.k\"\ncodec = \"none\"\n"
            );
            let figures = self.run("depth", &text);
            let axis = |n: u64| (0..n).map(|i| (i + half).min(n - 1) - i.saturating_sub(half) + 1).sum::<u64>();
            let pairs = (axis(rows) * axis(cols)) as f64;
            println!("| {half} | {:.3} | {:.1} | {:.0} |", figures.wall.median, figures.cpu * 1e9 / pairs, figures.peak_mib());
        }
        println!();
    }

    fn workers(&self, threads: usize) {
        println!("### KS test by workers (400x400x17, 11x11, dist and p, codec none)\n");
        println!("| workers | wall s | CPU s | peak MiB |");
        println!("| --- | --- | --- | --- |");
        for workers in (0..).map(|n| 1usize << n).take_while(|n| *n <= 2 * threads) {
            let text = format!(
                "[input]\npath = \"slc.zarr\"\n[[step]]\nop = \"ks_test\"\nhalf_window = 5\n[output]\npath = \"out.zarr\"\n\
                 codec = \"none\"\n[engine]\nworkers = {workers}\n"
            );
            let figures = self.run("workers", &text);
            println!("| {workers} | {:.3} | {:.3} | {:.0} |", figures.wall.median, figures.cpu, figures.peak_mib());
        }
        println!();
    }
}
