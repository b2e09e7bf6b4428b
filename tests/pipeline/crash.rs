//! A stage that fails or panics, wherever it is: the job fails with a reason that says where, nothing is published, no
//! thread is left, and the next job in this process is not hurt (I4, I6, I7).

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use halostream::config::CodecName;
use halostream::engine::publish::{Prepared, prepare};
use halostream::engine::{self, Silent};
use halostream::operators::{FoldOperator, Kind, OperatorError, Padded};
use halostream::plan::Plan;
use halostream::writer::{OutputLayout, Sink, SinkError};

use crate::common::{Array, Folder, write};
use crate::kit::{Hook, Window, alone, count_reads, expect_no_threads, job, plan_of, quiet};

/// Fails or panics at call `n`.
fn at(n: u64, panics: bool) -> Hook {
    Arc::new(move |call, _| match (call == n, panics) {
        (true, true) => panic!("told to panic"),
        (true, false) => Err("told to fail".to_owned()),
        _ => Ok(()),
    })
}

/// A real sink that fails at its n-th put.
struct Failing {
    inner: Arc<dyn Sink>,
    hook: Hook,
    calls: std::sync::atomic::AtomicU64,
}

impl Sink for Failing {
    fn layout(&self) -> &OutputLayout {
        self.inner.layout()
    }
    fn transient_bytes(&self) -> u64 {
        self.inner.transient_bytes()
    }
    fn put(&self, object: &[u64], values: &[u8]) -> Result<u64, SinkError> {
        let call = self.calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        (self.hook)(call, &AtomicBool::new(false)).map_err(|reason| SinkError::Encode { place: "test".to_owned(), reason })?;
        self.inner.put(object, values)
    }
    fn resume(&self, among: &Range<u64>, trusts: &dyn Fn(u64) -> bool) -> Result<HashSet<u64>, SinkError> {
        self.inner.resume(among, trusts)
    }
    fn noted(&self, object: &[u64]) -> Vec<u64> {
        self.inner.noted(object)
    }
    fn give_up(&self) {
        self.inner.give_up();
    }
    fn finish(&self) -> Result<u64, SinkError> {
        self.inner.finish()
    }
}

/// Runs a plan to publishing as the command line does, under a watchdog.
fn run(plan: Plan, sink: Hook) -> Result<(), String> {
    let (tx, rx) = flume::bounded(1);
    std::thread::spawn(move || {
        let plan = Arc::new(plan);
        let Ok(Prepared::Ready { staging, sinks, .. }) = prepare(&plan, false) else { panic!("the folder is new") };
        let wrap = |inner| Arc::new(Failing { inner, hook: sink.clone(), calls: Default::default() }) as Arc<dyn Sink>;
        let sinks = sinks.into_iter().map(wrap).collect();
        let result = engine::run(plan, sinks, Arc::new(Silent), Arc::new(AtomicBool::new(false)));
        let result = match result {
            Ok(_) => staging.publish().map(drop).map_err(|e| e.to_string()),
            Err(error) => {
                staging.abandon();
                Err(error.to_string())
            }
        };
        let _ = tx.send(result);
    });
    rx.recv_timeout(std::time::Duration::from_secs(60)).expect("the job hangs")
}

const BLOCKS: u64 = 12;

fn store(folder: &Folder) {
    write(&folder.path("x.zarr"), &Array::new::<f64>(&[48], &[2.0; 48]), &[4], None, CodecName::None);
}

fn window_plan(folder: &Folder, operator: Hook) -> Plan {
    store(folder);
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"identity\"\nname = \"s0\"\n[output]\npath = \"o.zarr\"\n\
                [engine]\nblock = [4]\nworkers = 2\n";
    plan_of(&job(text, &folder.0, &[Window::with(&[(1, 1)], operator)]))
}

/// Fails with a message that holds all of `words`; nothing stands; a good job follows.
#[track_caller]
fn expect_failure(plan: Plan, sink: Hook, folder: &Folder, words: &[&str]) {
    let error = run(plan, sink).expect_err("told to fail");
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    expect_no_threads();
    let left: Vec<String> = std::fs::read_dir(&folder.0)
        .expect("the folder")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(left, ["x.zarr"], "after: {error}");
    run(window_plan(folder, quiet()), quiet()).expect("the next job is not hurt");
    assert!(folder.path("o.zarr").exists());
}

#[test]
fn whichever_stage_fails_at_whichever_place_the_job_says_so_and_leaves_nothing() {
    let _alone = alone();
    for n in [0, 1, 5, BLOCKS - 1] {
        for panics in [false, true] {
            let word = if panics { "panicked: told to panic" } else { "told to fail" };

            let folder = Folder::new("crash-source");
            let mut plan = window_plan(&folder, quiet());
            count_reads(&mut plan, at(n, panics));
            expect_failure(plan, quiet(), &folder, &["reader: ", "input `input`, chunk [", word]);

            let folder = Folder::new("crash-operator");
            let plan = window_plan(&folder, at(n, panics));
            let step = if panics { "compute: " } else { "compute: step `s0`, " };
            expect_failure(plan, quiet(), &folder, &[step, "block ", "core [", word]);

            let folder = Folder::new("crash-sink");
            let plan = window_plan(&folder, quiet());
            expect_failure(plan, at(n, panics), &folder, &["writer: object [", "o.zarr", word]);

            // Encoders that wait for the turn of what failed do not wait for ever.
            let folder = Folder::new("crash-points");
            store(&folder);
            let text = "[input]\npath = \"x.zarr\"\n[output]\npath = \"o.zarr\"\npoints = \"index\"\nchunks = [5]\n\
                        [engine]\nblock = [4]\nworkers = 3\n";
            let plan = plan_of(&job(text, &folder.0, &[]));
            expect_failure(plan, at(n, panics), &folder, &["writer: object [", "o.zarr", word]);
        }
    }
}

/// Merges until it is told not to. One state of 8 bytes per kept cell.
struct Merging {
    hook: Hook,
    calls: std::sync::atomic::AtomicU64,
}

impl FoldOperator for Merging {
    fn state_bytes(&self) -> usize {
        8
    }
    fn is_order_free(&self) -> bool {
        false
    }
    fn leaf(&self, _: &[Padded], _: &[usize], _: &mut [u8]) -> Result<(), OperatorError> {
        Ok(())
    }
    fn merge(&self, _: &mut [u8], _: &[u8]) -> Result<(), OperatorError> {
        let call = self.calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        (self.hook)(call, &AtomicBool::new(false)).map_err(OperatorError::Data)
    }
    fn finish(&self, _: &[u8], _: u64, _: &mut [&mut [u8]]) -> Result<(), OperatorError> {
        Ok(())
    }
}

#[test]
fn a_fold_that_fails_to_merge_fails_the_job() {
    let _alone = alone();
    // Twelve blocks, eleven merges.
    for n in [0, 4, BLOCKS - 2] {
        for panics in [false, true] {
            let folder = Folder::new("crash-fold");
            store(&folder);
            let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"sum\"\naxis = 0\n[output]\npath = \"o.zarr\"\n\
                        [engine]\nblock = [4]\nworkers = 2\n";
            let mut plan = plan_of(&job(text, &folder.0, &[]));
            let phase = Arc::get_mut(&mut plan.phases[0].phase).expect("nobody else has it");
            // Leaves as long as blocks, so that every block brings one state to merge.
            phase.folds[0].leaf = Some(vec![4]);
            let fold = Arc::new(Merging { hook: at(n, panics), calls: Default::default() });
            phase.steps[0].binding.kind = Kind::Fold { fold, axes: vec![0] };
            plan.phases[0].reservation.fold = 1 << 20;
            plan.phases[0].reservation.compute = 1 << 20;
            let words: &[&str] = match panics {
                true => &["trim: block ", "panicked: told to panic"],
                false => &["trim: step `sum`, block ", "told to fail, in []"],
            };
            expect_failure(plan, quiet(), &folder, words);
        }
    }
}
