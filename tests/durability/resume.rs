//! An unfinished job goes on: under other engine settings, after signals, after a reboot, beside other jobs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use halostream::config::{self, CodecName};
use halostream::engine::journal::{Ledger, NAME, Noted, ObjectId};
use halostream::engine::publish::{Prepared, prepare};
use halostream::engine::{self, JobError, Observer};
use halostream::plan::moving::Moving;
use halostream::plan::smallest_memory;
use halostream::writer::Sink;

use crate::common::{Array, Folder, Random, child, machine, plan, write};
use crate::{Running, count, halostream, hash, job, names, objects, report, staged, tree, wait_until};

/// 36 blocks, each an object of both outputs; the sum over all is one more.
const STEPS: &str = "[input]
path = \"sample:volume\"
shape = [12, 60, 60]
chunks = [6, 20, 15]
[[step]]
op = \"cast\"
dtype = \"float64\"
[outputs.cast]
path = \"out.zarr\"
chunks = [6, 10, 20]
";

/// Stops the job once so many objects are stored.
struct StopAfter {
    objects: u64,
    stored: AtomicU64,
    stop: Arc<AtomicBool>,
    sinks: Vec<Arc<dyn Sink>>,
    /// To the ledger, as the command line does it.
    teller: Mutex<Option<Sender<ObjectId>>>,
}

impl Observer for StopAfter {
    fn object_written(&self, target: usize, object: &[u64], _: u64) {
        let noted = self.sinks[target].noted(object);
        let count = noted.len() as u64;
        if let Some(teller) = &*self.teller.lock().expect("no panic") {
            noted.into_iter().for_each(|number| teller.send((target as u32, number)).expect("the ledger listens"));
        }
        if self.stored.fetch_add(count, Ordering::SeqCst) + count >= self.objects {
            self.stop.store(true, Ordering::SeqCst);
        }
    }
}

/// Runs a job until so many objects are stored, then stops it; objects stored by this run, `None` if it came to its end.
fn part(text: &str, folder: &Path, objects: u64) -> Option<u64> {
    let plan = Arc::new(plan(text, folder).expect("a job"));
    let Ok(Prepared::Ready { staging, sinks, done, .. }) = prepare(&plan, true) else { panic!("nothing to go on with") };
    let stop = Arc::new(AtomicBool::new(false));
    let observer = Arc::new(StopAfter {
        objects,
        stored: AtomicU64::new(0),
        stop: stop.clone(),
        sinks: sinks.clone(),
        teller: Mutex::new(staging.teller()),
    });
    let ended = engine::resume(plan, sinks, done, observer.clone(), stop);
    *observer.teller.lock().expect("no panic") = None;
    match ended {
        Err(JobError::Stopped) => {
            let stored = observer.stored.load(Ordering::SeqCst);
            staging.keep(stored);
            Some(stored)
        }
        Ok(_) => {
            staging.publish().expect("published");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn other_engine_settings_go_on() {
    let folder = Folder::new("resume-engine");
    job(&folder, STEPS);
    halostream(&folder.0, &["run", "job.toml", "--report", "r.json"]).done();
    let want = tree(&folder.path("out.zarr"));
    let total = count(&report(&folder.0), "objects_written");
    std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    let engines = [
        "workers = 1\nmemory = \"16MiB\"\nblock = [6, 10, 20]\n",
        "workers = 2\nmemory = \"64MiB\"\nblock = [12, 20, 20]\npark = \"lz4\"\n",
        "workers = 3\nblock = \"source\"\npark = \"bitpack\"\n",
        "workers = 2\nblock = [7, 11, 13]\npark = \"none\"\n",
    ];
    let mut stored = 0;
    for engine in engines {
        stored += part(&format!("{STEPS}[engine]\n{engine}"), &folder.0, 6).expect("more than six objects are left");
        let at = staged(&folder.path("out.zarr")).expect("a staging folder");
        assert_eq!(objects(&at).len() as u64, stored, "no object is stored twice, none is lost");
    }
    let ended = halostream(&folder.0, &["run", "job.toml", "--report", "r.json", "--set", "engine.workers=2"]).done();
    assert!(ended.out.starts_with("wrote out.zarr"), "{}", ended.out);
    let report = report(&folder.0);
    assert_eq!(count(&report, "objects_written"), total - stored);
    assert_eq!(count(&report, "blocks_computed") + count(&report, "blocks_resumed"), count(&report, "blocks_total"));
    // Metadata too: with which settings a run went is none of the output's.
    assert!(tree(&folder.path("out.zarr")) == want);
    assert_eq!(names(&folder.0), ["job.toml", "out.zarr", "r.json"]);
}

/// A job that stops after so many objects goes on until all are stored, once each; three partitions make the same bytes.
fn goes_on_and_is_shared(folder: &Folder, text: &str, after: u64, objects_in_all: u64) {
    job(folder, text);
    halostream(&folder.0, &["run", "job.toml"]).done();
    let want = tree(&folder.path("out.zarr"));
    let clear = || std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    clear();
    let (mut stored, mut starts) = (0, 0);
    while let Some(more) = part(text, &folder.0, after) {
        stored += more;
        starts += 1;
        assert_eq!(objects(&staged(&folder.path("out.zarr")).expect("a staging folder")).len() as u64, stored);
    }
    assert!(starts > 2 && tree(&folder.path("out.zarr")) == want, "after {starts} parts");
    clear();
    let parts = ["0/3", "1/3", "2/3"].map(|part| {
        halostream(&folder.0, &["run", "job.toml", "--report", "r.json", "--partition", part]).done();
        count(&report(&folder.0), "objects_written")
    });
    assert!(parts.iter().all(|n| *n > 0) && parts.iter().sum::<u64>() == objects_in_all, "{parts:?}");
    assert!(tree(&folder.path("out.zarr")) == want);
}

#[test]
fn moved_blocks_go_on_and_are_shared_by_partitions() {
    let folder = Folder::new("resume-moving");
    let values: Vec<f32> = (0..60 * 50).map(|i| i as f32).collect();
    write(&folder.path("x.zarr"), &Array::new(&[60, 50], &values), &[7, 8], None, CodecName::None);
    let text =
        "[input]\npath = \"x.zarr\"\n[output]\npath = \"out.zarr\"\ncodec = \"none\"\n[engine]\nblock = [14, 8]\nworkers = 3\n";
    assert!(plan(text, &folder.0).expect("a plan").phases[0].moving.is_some());
    goes_on_and_is_shared(&folder, text, 11, 63);
}

#[test]
fn columns_go_on_and_are_shared_by_partitions() {
    let folder = Folder::new("resume-columns");
    let values: Vec<i32> = (0..5 * 48 * 40).map(|i| (i * 7919) % 1000).collect();
    write(&folder.path("x.zarr"), &Array::new(&[5, 48, 40], &values), &[1, 12, 40], None, CodecName::None);
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"sum\"\naxis = 0\n[output]\npath = \"out.zarr\"\ncodec = \"none\"\n\
                chunks = [6, 8]\n[engine]\nblock = [1, 3, 40]\nworkers = 2\n";
    assert_eq!(plan(text, &folder.0).expect("a plan").phases[0].moving, Some(Moving::Columns));
    goes_on_and_is_shared(&folder, text, 7, 40);
}

#[test]
fn sweeps_go_on_and_are_shared_by_partitions() {
    let folder = Folder::new("resume-sweeps");
    let values: Vec<f32> = (0..3 * 48 * 256).map(|i| (i * 7919 % 1000) as f32).collect();
    write(&folder.path("x.zarr"), &Array::new(&[3, 48, 256], &values), &[3, 12, 256], None, CodecName::None);
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"gaussian_filter\"\nsigma = 0.25\n[output]\npath = \"out.zarr\"\n\
                codec = \"none\"\nchunks = [3, 6, 128]\n[engine]\nworkers = 2\n";
    assert_eq!(plan(text, &folder.0).expect("a plan").phases[0].moving, Some(Moving::Sweeps));
    goes_on_and_is_shared(&folder, text, 3, 16);
}

/// A list of points, stopped again and again under other settings; between two runs the machine was started anew.
#[test]
fn points_go_on_where_their_list_ends() {
    let folder = Folder::new("resume-points");
    let x: Vec<i32> = (0..40 * 30).map(|i| if (i * 7919) % 5 < 2 { i + 1 } else { 0 }).collect();
    write(&folder.path("x.zarr"), &Array::new(&[40, 30], &x), &[7, 9], None, CodecName::Zstd);
    let text = "[input]\npath = \"x.zarr\"\n[output]\npath = \"out.zarr\"\npoints = \"index\"\nchunks = [16]\n";
    let engines = ["workers = 1\nblock = [3, 30]\n", "workers = 2\nblock = [5, 8]\n", "workers = 3\nblock = \"source\"\n"];
    job(&folder, text);
    halostream(&folder.0, &["run", "job.toml"]).done();
    let want = tree(&folder.path("out.zarr"));
    std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    let hash = hash(&folder, text);
    let mut stops = 0;
    let mut before = 0;
    for round in 0.. {
        let text = format!("{text}[engine]\n{}", engines[round % 3]);
        if part(&text, &folder.0, 3).is_none() {
            break;
        }
        stops += 1;
        let at = staged(&folder.path("out.zarr")).expect("progress");
        let Noted { objects: noted, .. } = Ledger::peek(&at).expect("a ledger");
        assert!(noted.len() >= before, "what was noted is kept");
        if round == 2 {
            // The power failed before the last chunks were synced.
            let kept: HashSet<(u32, u64)> = noted.iter().copied().filter(|(_, number)| *number < 5).collect();
            for path in objects(&at) {
                let number: u64 = path.iter().nth(2).expect("index/c/number").to_string_lossy().parse().expect("a number");
                if number >= 5 {
                    std::fs::write(at.join(path), [0; 128]).expect("a chunk");
                }
            }
            reboot(&at, &hash, &kept, &[]);
        }
        before = if round == 2 { 5 } else { noted.len() };
    }
    assert!(stops > 4, "{stops} stops");
    assert!(tree(&folder.path("out.zarr")) == want);
}

/// A job with a halo, of which any objects are there already: chunks come later than their first block would have wanted
/// them, and have to be as thin by then as the plan counts on. At the smallest limit nothing else would fit.
#[test]
fn any_blocks_may_be_done_where_chunks_become_thin() {
    let folder = Folder::new("resume-thin");
    let text = "[input]\npath = \"sample:volume\"\nshape = [96, 24, 20]\nchunks = [12, 8, 20]\n[[step]]\nop = \"gaussian_filter\"\n\
                sigma = 1\n[output]\npath = \"out.zarr\"\nchunks = [12, 8, 20]\n[engine]\nblock = [12, 8, 20]\n";
    job(&folder, text);
    halostream(&folder.0, &["run", "job.toml"]).done();
    let want = tree(&folder.path("out.zarr"));
    std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    let spec = config::job::parse(text, &folder.0, &[], &|_| None).expect("a job");
    let smallest = smallest_memory(&spec, &machine()).expect("a limit that works");
    let (mut r, mut thins, mut late) = (Random(5), 0, 0);
    // What a stopped run had noted depends on when its groups were synced: as many rounds as it takes.
    for round in (0..24).cycle().take(480) {
        if thins > 4 && late > 4 && round == 0 {
            break;
        }
        let text = format!("{text}memory = {}\nworkers = {}\n", smallest * (10 + round / 2) / 10, 1 + round % 2);
        let of_plan = plan(&text, &folder.0).expect("a job");
        thins += u64::from(of_plan.phases[0].thin_axis().is_some());
        if part(&text, &folder.0, 24 - round).is_none() {
            assert!(tree(&folder.path("out.zarr")) == want, "round {round}");
            std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
            continue;
        }
        let at = staged(&folder.path("out.zarr")).expect("progress");
        let Noted { objects: noted, .. } = Ledger::peek(&at).expect("a ledger");
        // The power failed, and any of them are lost.
        let kept: HashSet<(u32, u64)> = noted.iter().copied().filter(|_| r.range(0, 2) > 0).collect();
        late += u64::from(!kept.contains(&(0, 0)) && !kept.is_empty());
        reboot(&at, &of_plan.hash, &kept, &[]);
    }
    assert!(thins > 4 && late > 4, "{thins} plans had margins, {late} rounds began behind the first block");
    halostream(&folder.0, &["run", "job.toml"]).done();
    assert!(tree(&folder.path("out.zarr")) == want);
}

/// Eight blocks of 150 ms.
pub fn slow(folder: &Folder) -> String {
    let x: Vec<f64> = (0..96).map(f64::from).collect();
    write(&folder.path("x.zarr"), &Array::new(&[96], &x), &[12], None, CodecName::None);
    format!(
        "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"external\"\nname = \"f\"\ncommand = [{:?}]\ndtype = \"float64\"\n\
         params = {{ function = \"slow\", ms = 150 }}\n[output]\npath = \"out.zarr\"\nchunks = [12]\n[engine]\nworkers = 1\nblock = [12]\n",
        child().display().to_string()
    )
}

/// Starts the slow job and waits for some objects.
pub fn started(folder: &Folder, objects_stored: usize) -> Running {
    let mut running = Running::start(&folder.0, &["run", "job.toml", "--quiet"]);
    let out = folder.path("out.zarr");
    wait_until("objects", || {
        assert!(running.is_running(), "the job ended early: {}", running.error());
        staged(&out).is_some_and(|at| objects(&at).len() >= objects_stored)
    });
    running
}

#[test]
fn signals_keep_progress() {
    for (signal, code, word) in [(libc::SIGTERM, 75, "SIGTERM"), (libc::SIGINT, 130, "interrupted")] {
        let folder = Folder::new("resume-signal");
        job(&folder, &slow(&folder));
        let running = started(&folder, 2);
        running.signal(signal);
        running.end().fails(code, &[word, "progress is kept, the same command goes on"]);
        let kept = objects(&staged(&folder.path("out.zarr")).expect("progress")).len() as u64;
        assert!((2..8).contains(&kept), "{kept} objects are kept");
        halostream(&folder.0, &["run", "job.toml", "--report", "r.json"]).done();
        assert_eq!(count(&report(&folder.0), "objects_written"), 8 - kept);
        assert_eq!(count(&report(&folder.0), "blocks_resumed"), kept);
        assert_eq!(crate::common::read(&folder.path("out.zarr"), None), crate::common::read(&folder.path("x.zarr"), None));
        assert_eq!(names(&folder.0), ["job.toml", "out.zarr", "r.json", "x.zarr"]);
    }
}

#[test]
fn one_process_per_output() {
    let folder = Folder::new("resume-two");
    job(&folder, &slow(&folder));
    let first = started(&folder, 1);
    halostream(&folder.0, &["run", "job.toml"]).fails(2, &["another process is writing this output"]);
    let cleaned = halostream(&folder.0, &["clean", "out.zarr"]).done();
    assert!(cleaned.out.contains("its job is running"), "{}", cleaned.out);
    // Another job for the same path does not wait: whoever is last finds the output there.
    let other = halostream(&folder.0, &["run", "job.toml", "--set", "step.0.params.ms=1"]).done();
    assert!(other.err.contains("unfinished output of another job"), "{}", other.err);
    let first = first.end();
    // It overwrites nothing that it has not been told to.
    assert!(first.code == 1 && first.err.contains("was made by somebody else"), "{} {}", first.code, first.err);
    assert!(!halostream(&folder.0, &["inspect", "out.zarr", "--job"]).done().out.contains("ms = 150"));
}

#[test]
fn processes_that_start_at_once() {
    for _ in 0..4 {
        let folder = Folder::new("resume-race");
        job(&folder, STEPS);
        let all: Vec<Running> = (0..4).map(|_| Running::start(&folder.0, &["run", "job.toml", "--quiet"])).collect();
        let ended: Vec<_> = all.into_iter().map(Running::end).collect();
        assert!(ended.iter().any(|e| e.code == 0));
        for ended in &ended {
            let is_busy = ended.code == 2 && ended.err.contains("another process is writing this output");
            assert!(ended.code == 0 || is_busy, "{} {}", ended.code, ended.err);
        }
        assert_eq!(names(&folder.0), ["job.toml", "out.zarr"]);
    }
}

#[test]
fn staging_of_another_job_stays() {
    let folder = Folder::new("resume-other");
    let text = format!("{STEPS}[engine]\nworkers = 1\nblock = [6, 10, 20]\n");
    part(&text, &folder.0, 4).expect("stopped");
    let other = staged(&folder.path("out.zarr")).expect("progress");
    let before = tree(&other);
    job(&folder, &text.replace("float64", "float32"));
    let ended = halostream(&folder.0, &["run", "job.toml"]).done();
    assert!(ended.err.contains("unfinished output of another job; `halostream clean` removes it"), "{}", ended.err);
    assert!(tree(&other) == before);
    let cleaned = halostream(&folder.0, &["clean", "."]).done();
    assert!(cleaned.out.starts_with("removed ./.out.zarr.halostream-"), "{}", cleaned.out);
    assert_eq!(names(&folder.0), ["job.toml", "out.zarr"]);
}

/// A ledger's record: length, CRC, payload.
fn record(payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
    bytes.extend(crc32c::crc32c(payload).to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// The ledger that a machine would have written before it was started anew.
fn reboot(staged: &Path, hash: &str, noted: &HashSet<(u32, u64)>, more: &[&[u8]]) {
    let head = serde_json::json!({ "hash": hash, "boot": "another boot", "version": 1 }).to_string();
    let mut objects = vec![1u8];
    for (target, number) in noted {
        objects.extend(target.to_le_bytes());
        objects.extend(number.to_le_bytes());
    }
    let mut bytes = record(head.as_bytes());
    bytes.extend(record(&objects));
    more.iter().for_each(|payload| bytes.extend(record(payload)));
    std::fs::write(staged.join(NAME), bytes).expect("a ledger");
}

fn times(staged: &Path, objects: &[PathBuf]) -> Vec<SystemTime> {
    objects.iter().map(|o| std::fs::metadata(staged.join(o)).and_then(|m| m.modified()).expect("an object")).collect()
}

#[test]
fn after_a_reboot_only_what_was_noted_counts() {
    let folder = Folder::new("resume-reboot");
    let text = format!("{STEPS}[engine]\nworkers = 1\nblock = [6, 10, 20]\n");
    job(&folder, &text);
    halostream(&folder.0, &["run", "job.toml", "--report", "r.json"]).done();
    let want = tree(&folder.path("out.zarr"));
    let total = count(&report(&folder.0), "objects_written");
    std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");

    part(&text, &folder.0, 10).expect("stopped");
    let at = staged(&folder.path("out.zarr")).expect("progress");
    let Noted { objects: noted, .. } = Ledger::peek(&at).expect("a ledger");
    assert_eq!(noted.len(), objects(&at).len(), "a stopped run notes everything it has stored");
    // The power failed before the last ones were synced: their names stand, their bytes do not.
    let kept: HashSet<(u32, u64)> = noted.iter().copied().filter(|(_, number)| number % 3 == 0).collect();
    assert!(!kept.is_empty() && kept.len() < noted.len());
    let number = |path: &PathBuf| {
        let index: Vec<u64> = path.iter().skip(1).map(|p| p.to_string_lossy().parse().expect("a number")).collect();
        (index[0] * 6 + index[1]) * 3 + index[2]
    };
    let (trusted, torn): (Vec<PathBuf>, Vec<PathBuf>) =
        objects(&at).into_iter().partition(|path| kept.contains(&(0, number(path))));
    torn.iter().for_each(|path| std::fs::write(at.join(path), "garbage").expect("an object"));
    let before = times(&at, &trusted);
    reboot(&at, &hash(&folder, &text), &kept, &[]);
    // Killed once more, before all torn ones are made again: from now on names count.
    part(&text, &folder.0, 2).expect("stopped");
    assert_eq!(times(&at, &trusted), before, "what was noted is kept");
    assert!(Ledger::peek(&at).is_some_and(|n| n.boot != "another boot"));
    let stored = objects(&at).len() as u64;
    halostream(&folder.0, &["run", "job.toml", "--report", "r.json"]).done();
    assert_eq!(count(&report(&folder.0), "objects_written"), total - stored);
    assert_eq!(times(&folder.path("out.zarr"), &trusted), before);
    assert!(tree(&folder.path("out.zarr")) == want);
}

#[test]
fn what_was_never_synced_is_not_complete_after_a_reboot() {
    let folder = Folder::new("resume-unsynced");
    job(&folder, STEPS);
    halostream(&folder.0, &["run", "job.toml", "--no-sync"]).done();
    let want = tree(&folder.path("out.zarr"));
    let hash = hash(&folder, STEPS);
    for (is_synced, said) in [(0u8, "wrote out.zarr in "), (1, "it was complete before")] {
        // Killed before the name was given, then the power failed.
        let at = halostream::engine::staging::name(&folder.path("out.zarr"), &hash);
        std::fs::rename(folder.path("out.zarr"), &at).expect("a store");
        if is_synced == 0 {
            std::fs::write(at.join("c/0/0/0"), "garbage").expect("an object");
        }
        reboot(&at, &hash, &HashSet::new(), &[&[2, is_synced]]);
        let ended = halostream(&folder.0, &["run", "job.toml"]).done();
        assert!(ended.out.contains(said), "{}", ended.out);
        assert!(tree(&folder.path("out.zarr")) == want);
    }
}
