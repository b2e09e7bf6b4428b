//! What the integration tests share: arrays on disk, jobs in this process, a seeded random generator.
#![allow(dead_code)]

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use halostream::array::grid::for_each_index;
use halostream::array::{Block, DType, Element, Region};
use halostream::config::{self, CodecName, CodecSpec, Missing};
use halostream::engine::publish::{Prepared, prepare};
use halostream::engine::report::RunReport;
use halostream::engine::{self, Observer, Silent};
use halostream::plan::Plan;
use halostream::plan::machine::Machine;
use halostream::reader::Source;
use halostream::writer::{OutputLayout, Sink, zarr};

/// A folder that goes when the test ends.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// In a file system in memory if there is one: syncs cost nothing there.
    pub fn in_memory(name: &str) -> Self {
        let shared = Path::new("/dev/shm");
        let can_write = shared.metadata().is_ok_and(|m| m.is_dir() && !m.permissions().readonly());
        Self::below(if can_write { shared.to_path_buf() } else { std::env::temp_dir() }.as_path(), name)
    }

    fn below(folder: &Path, name: &str) -> Self {
        static N: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = N.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = folder.join(format!("halostream-{name}-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A whole array in memory: shape and values in C order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Vec<u64>,
    pub dtype: DType,
    pub bytes: Vec<u8>,
}

impl Array {
    pub fn new<T: Element>(shape: &[u64], values: &[T]) -> Self {
        assert_eq!(values.len() as u64, shape.iter().product::<u64>());
        Self { shape: shape.to_vec(), dtype: T::DTYPE, bytes: bytemuck::cast_slice(values).to_vec() }
    }

    pub fn values<T: Element>(&self) -> Vec<T> {
        assert_eq!(self.dtype, T::DTYPE);
        bytemuck::pod_collect_to_vec(&self.bytes)
    }

    /// The same values in another shape.
    pub fn reshaped(mut self, shape: &[u64]) -> Self {
        self.shape = shape.to_vec();
        self
    }

    pub fn block(&self) -> Block {
        let shape: Vec<usize> = self.shape.iter().map(|&n| n as usize).collect();
        let mut buffer = halostream::array::Buffer::loose(self.bytes.len());
        buffer.copy_from_slice(&self.bytes);
        Block::new(buffer, self.dtype, shape)
    }
}

pub fn codec(name: CodecName) -> CodecSpec {
    CodecSpec { name, level: None }
}

/// Writes an array as Zarr, through the sink.
pub fn write(path: &Path, array: &Array, chunks: &[u64], shards: Option<Vec<u64>>, codec: CodecName) {
    let layout = OutputLayout {
        shape: array.shape.clone(),
        dtype: array.dtype,
        chunks: chunks.to_vec(),
        shards,
        codec: self::codec(codec),
        zarr_format: 3,
        dimension_names: vec![None; chunks.len()],
        attributes: Default::default(),
        points: None,
        is_remote: false,
    };
    let sink = zarr::create(path, "", layout.clone(), false).expect("a store");
    let whole = array.block();
    let grid = layout.object_grid();
    let lists: Vec<Vec<u64>> = grid.0.iter().map(|g| (0..g.cells()).collect()).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let full: Vec<usize> = layout.object_shape().iter().map(|&n| n as usize).collect();
    for_each_index::<()>(&lists, |index| {
        let ranges: Vec<(i64, i64)> =
            grid.0.iter().zip(index).map(|(g, &i)| (g.range(i).start as i64, g.range(i).end as i64)).collect();
        let part = whole.cut(&Region::whole(&array.shape), &Region::from_ranges(&ranges));
        let mut values = vec![0u8; full.iter().product::<usize>() * array.dtype.size()];
        let strides = halostream::array::block::c_strides(&full, array.dtype.size());
        let (src, offset) = part.raw();
        halostream::array::block::copy_strided(
            &mut values,
            0,
            &strides,
            src,
            offset,
            part.strides(),
            part.shape(),
            array.dtype.size(),
        );
        sink.put(index, &values).expect("a chunk");
        Ok(())
    })
    .expect("all chunks");
    sink.finish().expect("finished");
}

/// Reads a whole Zarr array.
pub fn read(path: &Path, array: Option<&str>) -> Array {
    let source: Arc<dyn Source> = Arc::new(halostream::reader::zarr::open(path, array, Missing::Error).expect("an array"));
    let meta = source.meta();
    let shape: Vec<usize> = meta.array.shape.iter().map(|&n| n as usize).collect();
    let size = meta.array.dtype.size();
    let mut bytes = vec![0u8; shape.iter().product::<usize>() * size];
    let strides = halostream::array::block::c_strides(&shape, size);
    let lists: Vec<Vec<u64>> = meta.grid.0.iter().map(|g| (0..g.cells()).collect()).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    for_each_index::<()>(&lists, |index| {
        let block = halostream::reader::stage::read_whole(&source, index).expect("a chunk");
        let ranges: Vec<_> = meta.grid.0.iter().zip(index).map(|(g, &i)| g.range(i)).collect();
        let stop: Vec<usize> = ranges.iter().map(|r| (r.end - r.start) as usize).collect();
        let part = block.view(&vec![0; stop.len()], &stop);
        let offset: isize = ranges.iter().zip(&strides).map(|(r, s)| r.start as isize * s).sum();
        let (src, from) = part.raw();
        halostream::array::block::copy_strided(&mut bytes, offset, &strides, src, from, part.strides(), part.shape(), size);
        Ok(())
    })
    .expect("all chunks");
    Array { shape: meta.array.shape.clone(), dtype: meta.array.dtype, bytes }
}

pub fn machine() -> Machine {
    Machine { cores: 2, memory_available: 1 << 30 }
}

/// Reads, plans, runs and publishes a job; the text of the first error otherwise.
pub fn run(text: &str, folder: &Path) -> Result<RunReport, String> {
    run_observed(text, folder, Arc::new(Silent))
}

pub fn run_observed(text: &str, folder: &Path, observer: Arc<dyn Observer>) -> Result<RunReport, String> {
    let plan = Arc::new(plan(text, folder)?);
    let (staging, sinks, done) = match prepare(&plan, false).map_err(|e| e.to_string())? {
        Prepared::Ready { staging, sinks, done, .. } => (staging, sinks, done),
        Prepared::AlreadyDone | Prepared::Finished | Prepared::PartDone { .. } => return Err("already done".to_owned()),
    };
    match engine::resume(plan, sinks, done, observer, Arc::new(AtomicBool::new(false))) {
        Ok(report) => staging.publish().map(|_| report).map_err(|e| e.to_string()),
        Err(error) => {
            staging.abandon();
            Err(error.to_string())
        }
    }
}

pub fn plan(text: &str, folder: &Path) -> Result<Plan, String> {
    let lines = |list: Vec<String>| list.join("\n");
    let job = config::job::parse(text, folder, &[], &|_| None).map_err(|p| lines(p.iter().map(ToString::to_string).collect()))?;
    Plan::new(&job, &machine()).map_err(|e| lines(e.iter().map(ToString::to_string).collect()))
}

/// splitmix64: small, seeded, good enough to pick shapes.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.next() as usize % of.len()]
    }

    /// A number in -1..1.
    pub fn signed(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// The child of `examples/child.rs`. `cargo test` builds it with all other targets, a test by name does not: there it might
/// be missing, or an old one.
pub fn child() -> PathBuf {
    static CHILD: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let find = || {
        let mut folder = std::env::current_exe().expect("a test has a path");
        folder.pop();
        folder.pop();
        let path = folder.join("examples/child");
        let mut build = std::process::Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--example", "child"]).env("CARGO_TARGET_DIR", folder.parent().expect("a target folder"));
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        // What cargo tells this test of its package, build scripts of others take for a change, and are built again.
        let told = |key: &str| key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_") || key == "CARGO_CRATE_NAME";
        std::env::vars().filter(|(key, _)| told(key)).for_each(|(key, _)| {
            build.env_remove(key);
        });
        if folder.ends_with("release") {
            build.arg("--release");
        }
        let is_built = build.status().is_ok_and(|status| status.success());
        assert!(is_built && path.exists(), "{} was not built", path.display());
        path
    };
    CHILD.get_or_init(find).clone()
}

/// A file system in memory, mounted for a test.
pub struct Disk(pub PathBuf);

impl Disk {
    /// With options of tmpfs, such as `size=50m`; `None` when this user may not mount.
    pub fn new(at: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        mount(at, 0, options).then(|| Self(at.to_path_buf()))
    }

    /// Changes what it is mounted with.
    pub fn remount(&self, flags: libc::c_ulong, options: &str) {
        assert!(mount(&self.0, libc::MS_REMOUNT | flags, options), "no remount with {options}");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = CString::new(self.0.display().to_string()).expect("a path");
        // SAFETY: a valid C string.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn mount(at: &Path, flags: libc::c_ulong, options: &str) -> bool {
    let text = |t: &str| CString::new(t).expect("no NUL");
    let (at, kind, options) = (text(&at.display().to_string()), text("tmpfs"), text(options));
    // SAFETY: all are valid C strings that live through the call.
    unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) == 0 }
}
