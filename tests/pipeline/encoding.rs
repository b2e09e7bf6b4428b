//! Large blocks that are objects are encoded by the workers that made them, and chunks of which blocks need little are cut along two
//! axes: the same results as by small blocks, in the memory that the plan says, also for a job that goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use halostream::config::CodecName;
use halostream::engine::publish::{Prepared, prepare};
use halostream::engine::report::RunReport;
use halostream::engine::{self, Observer};
use halostream::plan::Plan;
use halostream::plan::smallest_memory;

use crate::common::{Array, Folder, Random, machine, plan, read, run, write};
use crate::kit::{Hook, alone, expect_no_threads, run_with};

/// Nine chunks of 8.4 MiB, some of them at the array's end cut or not.
fn store(folder: &Folder, shape: &[u64]) {
    let mut r = Random(5);
    let values: Vec<f32> = (0..shape.iter().product::<u64>()).map(|_| r.signed() as f32).collect();
    write(&folder.path("x.zarr"), &Array::new(shape, &values), &[2, 1050, 1050], None, CodecName::Zstd);
}

fn job(output: &str, engine: &str) -> String {
    format!(
        "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"gaussian_filter\"\nsigma = [0.4, 0.9, 0.7]\n[output]\npath = \"{output}.zarr\"\n\
         codec = \"zstd\"\n[engine]\nworkers = 2\n{engine}"
    )
}

fn expect_within(report: &RunReport) {
    for (name, peak, reserved) in &report.leased_peak_bytes {
        assert!(peak <= reserved, "{name} took {peak} of {reserved}");
    }
}

#[test]
fn workers_encode_large_objects_themselves() {
    for shape in [[2, 3150, 3150], [2, 3150, 2200]] {
        let folder = Folder::new("encoding");
        store(&folder, &shape);
        let small = job("small", "block = [2, 400, 700]\n");
        assert!(plan(&small, &folder.0).expect("a plan").phases[0].concurrency.encoders > 0);
        run(&small, &folder.0).expect("a good end");
        let want = read(&folder.path("small.zarr"), None);
        let roomy = plan(&job("o", ""), &folder.0).expect("a plan");
        let (least, all) = (roomy.predicted_peak_bytes(), roomy.phases[0].traversal.block_count());
        for (name, engine) in [("roomy", String::new()), ("least", format!("memory = {least}\n"))] {
            let text = job(name, &engine);
            let plan = plan(&text, &folder.0).expect("a plan");
            let phase = &plan.phases[0];
            assert!(phase.concurrency.encoders == 0 && phase.frontier.has_sides && phase.rest.is_some(), "{text}");
            let report = run(&text, &folder.0).expect("a good end");
            assert_eq!((report.source_chunk_reads, report.objects_written, report.blocks_computed), (9, 9, all));
            expect_within(&report);
            assert!(read(&folder.path(&format!("{name}.zarr")), None) == want, "{text}");
        }
    }
}

/// Stops a job once so many objects are stored.
struct Stopper {
    after: u64,
    stored: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Observer for Stopper {
    fn object_written(&self, _target: usize, _object: &[u64], _bytes: u64) {
        if self.stored.fetch_add(1, Ordering::SeqCst) + 1 >= self.after {
            self.stop.store(true, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_job_that_goes_on_finds_its_way_with_chunks_that_come_late() {
    let folder = Folder::new("encoding-on");
    store(&folder, &[2, 3150, 3150]);
    run(&job("want", ""), &folder.0).expect("a good end");
    let want = read(&folder.path("want.zarr"), None);
    let spec = halostream::config::job::parse(&job("o", ""), &folder.0, &[], &|_| None).expect("a job");
    let least = smallest_memory(&spec, &machine()).expect("a number");
    let whole = plan(&job("o", ""), &folder.0).expect("a plan").predicted_peak_bytes();
    for (round, memory) in [u64::MAX, whole, least, u64::MAX, whole, least].into_iter().enumerate() {
        let name = format!("o{round}");
        let text = job(&name, &if memory == u64::MAX { String::new() } else { format!("memory = {memory}\n") });
        let plan = Arc::new(plan(&text, &folder.0).expect("a plan"));
        let Ok(Prepared::Ready { staging, sinks, done, .. }) = prepare(&plan, false) else { panic!("nothing stands there") };
        assert!(done.is_empty());
        let stop = Arc::new(AtomicBool::new(false));
        let after = [1, 3, 5][round % 3];
        let observer = Arc::new(Stopper { after, stored: AtomicU64::new(0), stop: stop.clone() });
        let ended = engine::resume(plan.clone(), sinks, done, observer.clone(), stop);
        assert!(ended.is_err(), "it was stopped");
        let stored = observer.stored.load(Ordering::SeqCst);
        staging.end(&plan, ended, stored).expect_err("it was stopped");
        let report = run(&text, &folder.0).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(report.objects_written, 9 - stored, "{text}");
        expect_within(&report);
        assert!(read(&folder.path(&format!("{name}.zarr")), None) == want, "{text}");
    }
}

#[test]
fn a_worker_that_cannot_store_ends_the_job() {
    let _alone = alone();
    let folder = Folder::new("encoding-fails");
    store(&folder, &[2, 3150, 3150]);
    for (n, panics) in [(0, false), (4, true), (8, false)] {
        let hook: Hook = Arc::new(move |call, _| match (call == n, panics) {
            (true, true) => panic!("told to panic"),
            (true, false) => Err("told to fail".to_owned()),
            _ => Ok(()),
        });
        let plan: Plan = plan(&job("o", ""), &folder.0).expect("a plan");
        assert_eq!(plan.phases[0].concurrency.encoders, 0);
        let error = run_with(plan, hook).err().expect("told to fail");
        assert!(error.contains("object [") && error.contains(if panics { "told to panic" } else { "told to fail" }), "{error}");
        expect_no_threads();
    }
}
