//! Every operation of a small job fails once, in every way: a clear error, nothing under the final name, and a clean run
//! goes on from there to the right bytes.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use halostream::config::CodecName;
use halostream::engine::publish::{Prepared, prepare};
use halostream::engine::{self, Silent};
use halostream::reader::{ChunkRead, Source, SourceError, SourceMeta};
use halostream::writer::{OutputLayout, Sink, SinkError};

use crate::common::{Array, Folder, plan, run, write};
use crate::{halostream, job, names, staged, tree};

/// How an operation goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Refused, nothing is done.
    Full,
    /// The device fails after the work was done: nobody can tell.
    Late,
    /// Less than there should be (reads).
    Short,
}

/// Fails at its n-th operation, whichever of its users has it.
struct Bomb {
    at: u64,
    fault: Fault,
    operations: AtomicU64,
}

impl Bomb {
    fn goes_off(&self) -> bool {
        self.operations.fetch_add(1, Ordering::SeqCst) == self.at
    }

    fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(if self.fault == Fault::Full { libc::ENOSPC } else { libc::EIO })
    }
}

struct FailingSink(Arc<dyn Sink>, Arc<Bomb>);

impl FailingSink {
    fn failed(&self) -> SinkError {
        SinkError::Io { place: "the sink".to_owned(), error: self.1.error() }
    }

    fn run<T>(&self, work: impl FnOnce() -> Result<T, SinkError>) -> Result<T, SinkError> {
        match (self.1.goes_off(), self.1.fault) {
            (false, _) => work(),
            (true, Fault::Full) => Err(self.failed()),
            (true, _) => work().and(Err(self.failed())),
        }
    }
}

impl Sink for FailingSink {
    fn layout(&self) -> &OutputLayout {
        self.0.layout()
    }
    fn transient_bytes(&self) -> u64 {
        self.0.transient_bytes()
    }
    fn put(&self, object: &[u64], values: &[u8]) -> Result<u64, SinkError> {
        self.run(|| self.0.put(object, values))
    }
    fn is_stored(&self, object: &[u64]) -> bool {
        self.0.is_stored(object)
    }
    fn discard(&self, object: &[u64]) -> Result<(), SinkError> {
        self.0.discard(object)
    }
    fn finish(&self) -> Result<(), SinkError> {
        self.run(|| self.0.finish())
    }
}

struct FailingSource(Arc<dyn Source>, Arc<Bomb>);

impl Source for FailingSource {
    fn meta(&self) -> &SourceMeta {
        self.0.meta()
    }
    fn stamp(&self) -> Result<String, SourceError> {
        self.0.stamp()
    }
    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        let place = "the source".to_owned();
        match (self.1.goes_off(), self.1.fault) {
            (false, _) => self.0.read_chunk(chunk, out, transient),
            (true, Fault::Short) => {
                out.fill(0xaa);
                Err(SourceError::Corrupt { place, reason: "the chunk is torn".to_owned() })
            }
            (true, _) => Err(SourceError::Io { place, error: self.1.error() }),
        }
    }
}

/// Runs a job whose n-th operation fails; the error, or `None` when the job has no such operation.
fn run_failing(text: &str, folder: &Folder, at: u64, fault: Fault) -> Option<String> {
    let mut plan = plan(text, &folder.0).expect("a job");
    let bomb = Arc::new(Bomb { at, fault, operations: AtomicU64::new(0) });
    for feed in plan.phases.iter_mut().flat_map(|p| &mut p.feeds) {
        feed.feed.source = Arc::new(FailingSource(feed.feed.source.clone(), bomb.clone()));
    }
    let Ok(Prepared::Ready { staging, sinks, done }) = prepare(&plan, false) else { panic!("nothing to do") };
    let sinks = sinks.into_iter().map(|sink| Arc::new(FailingSink(sink, bomb.clone())) as Arc<dyn Sink>).collect();
    match engine::resume(Arc::new(plan), sinks, done, Arc::new(Silent), Arc::new(AtomicBool::new(false))) {
        Ok(_) => {
            staging.publish().expect("published");
            None
        }
        Err(error) => {
            staging.keep(1);
            Some(error.to_string())
        }
    }
}

fn every_fault(name: &str, steps: &str, outputs: &[&str]) {
    let folder = Folder::new(name);
    let x: Vec<i16> = (0..200).map(|i| i * 7 % 60).collect();
    write(&folder.path("x.zarr"), &Array::new(&[20, 10], &x), &[4, 5], None, CodecName::Zstd);
    let text = format!("[input]\npath = \"x.zarr\"\n{steps}[engine]\nworkers = 1\nmemory = \"16MiB\"\n");
    run(&text, &folder.0).expect("a run that nobody hurts");
    let trees = || -> Vec<BTreeMap<PathBuf, Vec<u8>>> { outputs.iter().map(|o| tree(&folder.path(o))).collect() };
    let want = trees();
    let clear = || outputs.iter().for_each(|o| std::fs::remove_dir_all(folder.path(o)).expect("an output"));
    clear();
    for fault in [Fault::Full, Fault::Late, Fault::Short] {
        for at in 0.. {
            let Some(error) = run_failing(&text, &folder, at, fault) else {
                assert!(at >= 22, "{at} operations: ten reads, twelve objects at least");
                assert!(trees() == want, "{fault:?}");
                clear();
                break;
            };
            let words = [["the sink", "the source"], ["No space left on device", "Input/output error"], ["torn", "torn"]];
            let has = |of: &[&str; 2]| of.iter().any(|word| error.contains(word));
            assert!(has(&words[0]) && (has(&words[1]) || has(&words[2])), "{fault:?} at {at}: {error}");
            assert!(outputs.iter().all(|o| !folder.path(o).exists()), "{fault:?} at {at}: something has its name");
            // The same job, no fault: from what is there.
            run(&text, &folder.0).unwrap_or_else(|error| panic!("after {fault:?} at {at}: {error}"));
            assert!(trees() == want, "after {fault:?} at {at}: other bytes");
            assert_eq!(names(&folder.0).len(), outputs.len() + 1);
            clear();
        }
    }
}

#[test]
fn every_operation_of_a_map() {
    let steps = "[[step]]\nop = \"cast\"\ndtype = \"float64\"\n[output]\npath = \"out.zarr\"\nchunks = [5, 4]\n";
    every_fault("fault-map", steps, &["out.zarr"]);
}

#[test]
fn every_operation_of_a_fold() {
    // The sum over rows is divided by nobody, but stored in a store of its own beside the map's.
    let steps = "[[step]]\nop = \"cast\"\ndtype = \"float64\"\n[[step]]\nop = \"sum\"\naxis = 0\n\
                 [outputs.total]\npath = \"total.zarr\"\nfrom = \"sum\"\nchunks = [4]\n\
                 [outputs.cast]\npath = \"out.zarr\"\nfrom = \"cast\"\nchunks = [5, 4]\nshards = [10, 4]\n";
    let fewer = steps.replace("shards = [10, 4]\n", "");
    every_fault("fault-fold", &fewer, &["out.zarr", "total.zarr"]);
}

const SMALL: &str =
    "[input]\npath = \"sample:volume\"\nshape = [8, 40, 30]\nchunks = [4, 20, 10]\n[output]\npath = \"out.zarr\"\n";

#[test]
fn places_that_cannot_be_written() {
    let folder = Folder::new("fault-places");
    job(&folder, SMALL);
    std::fs::write(folder.path("file"), "x").expect("a file");
    for place in ["file/out.zarr", "/proc/out.zarr", "/proc/self/none/out.zarr"] {
        let ended = halostream(&folder.0, &["run", "job.toml", "--set", &format!("output.path={place}")]);
        ended.fails(1, &[place.rsplit_once('/').map_or(place, |p| p.0)]);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    }
    assert_eq!(names(&folder.0), ["file", "job.toml"]);
}

#[test]
fn staging_removed_while_running() {
    let folder = Folder::new("fault-removed");
    job(&folder, &crate::resume::slow(&folder));
    let running = crate::resume::started(&folder, 2);
    std::fs::remove_dir_all(staged(&folder.path("out.zarr")).expect("a staging folder")).expect("removed");
    running.end().fails(1, &["removed while it was being written"]);
    assert!(!folder.path("out.zarr").exists(), "objects are lost");
    halostream(&folder.0, &["run", "job.toml", "--set", "step.0.params.ms=150"]).done();
    assert_eq!(names(&folder.0), ["job.toml", "out.zarr", "x.zarr"]);
}
