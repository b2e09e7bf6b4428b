//! `run --partition I/N`: several processes make one job's outputs, in any order, at once, killed and started again. The bytes
//! are those of one process, names come with the last one, and nobody disturbs anybody.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use halostream::array::grid::for_each_cell;
use halostream::engine::partition::Partition;
use halostream::engine::publish::{Prepared, Staging, prepare};

use crate::common::{self, Folder, Random, read};
use crate::{Running, count, halostream, job, names, report, staged, tree, wait_until};

/// Three arrays on three grids in two stores; a map, a map of its result, and a fold.
const SEVERAL: &str = "[input]
path = \"sample:slc\"
shape = [96, 80, 11]
chunks = [32, 40, 11]
[[step]]
op = \"intensity\"
[[step]]
op = \"ks_test\"
inputs = [\"input\"]
half_window = [2, 2]
[[step]]
op = \"sum\"
inputs = [\"intensity\"]
axis = 2
[outputs.tests]
path = \"ks.zarr\"
from = \"ks_test\"
chunks = [16, 16, 5, 5]
shards = [32, 16, 5, 5]
[outputs.total]
path = \"sum.zarr\"
from = \"sum\"
chunks = [20, 40]
[engine]
workers = 2
memory = \"256MiB\"
";

/// A result that a later step reads whole; one object in all.
const WHOLE: &str = "[input]
path = \"sample:volume\"
shape = [12, 30, 40]
chunks = [4, 16, 16]
[[step]]
op = \"max\"
axis = [0, 1, 2]
keepdims = true
[[step]]
op = \"expression\"
formula = \"x / m\"
inputs = [\"input\", \"max\"]
names = [\"x\", \"m\"]
[outputs.scaled]
path = \"ks.zarr\"
from = \"expression\"
chunks = [5, 30, 9]
zarr_format = 2
[outputs.most]
path = \"sum.zarr\"
from = \"max\"
[engine]
workers = 1
";

const OUTPUTS: [&str; 2] = ["ks.zarr", "sum.zarr"];

struct Job {
    folder: Folder,
    want: Vec<BTreeMap<PathBuf, Vec<u8>>>,
}

impl Job {
    /// Runs it once by itself to learn what is to come out.
    fn new(name: &str, text: &str) -> Self {
        let folder = Folder::new(name);
        job(&folder, text);
        halostream(&folder.0, &["run", "job.toml", "--quiet"]).done();
        let want = OUTPUTS.iter().map(|path| tree(&folder.path(path))).collect();
        let made = Self { folder, want };
        made.clear();
        made
    }

    fn clear(&self) {
        OUTPUTS.iter().for_each(|path| std::fs::remove_dir_all(self.folder.path(path)).expect("an output"));
    }

    fn start(&self, part: &str) -> Running {
        Running::start(&self.folder.0, &["run", "job.toml", "--quiet", "--partition", part])
    }

    fn run(&self, part: &str) -> crate::Ended {
        halostream(&self.folder.0, &["run", "job.toml", "--report", "r.json", "--partition", part])
    }

    fn nothing_stands(&self) -> bool {
        OUTPUTS.iter().all(|path| !self.folder.path(path).exists())
    }

    #[track_caller]
    fn is_complete(&self) {
        for (path, want) in OUTPUTS.iter().zip(&self.want) {
            assert!(tree(&self.folder.path(path)) == *want, "{path} differs from what one process makes");
        }
        let left: Vec<String> = names(&self.folder.0).into_iter().filter(|n| n.starts_with('.')).collect();
        assert!(left.is_empty(), "left: {left:?}");
    }
}

#[test]
fn any_number_in_any_order_gives_the_bytes_of_one() {
    for (name, text) in [("parts-several", SEVERAL), ("parts-whole", WHOLE)] {
        let made = Job::new(name, text);
        let mut random = Random(5);
        for count_of in [1u64, 2, 3, 7, 200] {
            let mut order: Vec<u64> = (0..count_of).collect();
            (1..order.len()).for_each(|i| order.swap(i, random.range(0, i as u64) as usize));
            let (mut read, mut written) = (0, 0);
            // Of many only some one by one, so that the test stays short.
            let (first, last) = order.split_at(order.len().saturating_sub(5));
            for chunk in first.chunks(8) {
                let running: Vec<Running> = chunk.iter().map(|i| made.start(&format!("{i}/{count_of}"))).collect();
                running.into_iter().for_each(|part| drop(part.end().done()));
            }
            for (n, i) in last.iter().enumerate() {
                assert!(made.nothing_stands(), "{name}: before the last of {count_of}");
                let told = made.run(&format!("{i}/{count_of}")).done().out;
                let report = report(&made.folder.0);
                let part = &report["partition"];
                assert_eq!((part["index"].as_u64(), part["count"].as_u64()), (Some(*i), Some(count_of)));
                let complete = count(part, "complete");
                assert_eq!(complete, (first.len() + n + 1) as u64);
                let is_last = complete == count_of;
                assert_eq!(part["is_published"].as_bool(), Some(is_last));
                assert_eq!(told.contains("was the last"), is_last, "{told}");
                read += count(&report, "source_chunk_reads");
                written += count(&report, "objects_written");
            }
            made.is_complete();
            if first.is_empty() {
                let objects: usize = made.want.iter().map(|tree| tree.keys().filter(|key| is_object(key)).count()).sum();
                assert_eq!(written, objects as u64, "{name}: each object is put once, by its owner");
                assert!(read > 0);
            }
            // Again, each of them: nothing to do.
            let again = made.run(&format!("0/{count_of}")).done();
            assert!(again.out.contains("nothing to do"), "{}", again.out);
            made.clear();
        }
    }
}

fn is_object(key: &Path) -> bool {
    let is_ledger = key.starts_with(".halostream-parts");
    !is_ledger && key.file_name().is_some_and(|name| name != "zarr.json" && !name.to_string_lossy().starts_with('.'))
}

#[test]
fn all_at_once_killed_and_started_again() {
    let made = Job::new("parts-killed", SEVERAL);
    let mut random = Random(11);
    let count_of = 4u64;
    let mut hit = 0;
    for _ in 0..6 {
        let mut parts: Vec<Running> = (0..count_of).map(|i| made.start(&format!("{i}/{count_of}"))).collect();
        std::thread::sleep(Duration::from_millis(random.range(0, 400)));
        for part in &mut parts {
            if random.range(0, 1) == 0 && part.is_running() {
                part.signal(libc::SIGKILL);
                hit += 1;
            }
        }
        for (i, mut part) in parts.into_iter().enumerate() {
            let code = part.0.wait().expect("it ends").code();
            assert!(matches!(code, None | Some(0)), "partition {i} ended with {code:?}: {}", part.error());
        }
        let killed = (0..count_of).map(|i| made.start(&format!("{i}/{count_of}")));
        killed.collect::<Vec<_>>().into_iter().for_each(|part| drop(part.end().done()));
        made.is_complete();
        made.clear();
    }
    assert!(hit > 0, "no kill hit a partition");
}

/// Holds a partition in the middle of its work, for as long as it lives.
fn slow(made: &Job, part: &str) -> Running {
    let running = made.start(part);
    // It has laid out everything when it stores.
    let is_stored = |path| staged(&made.folder.path(path)).is_some_and(|at| tree(&at).keys().any(|key| is_object(key)));
    wait_until("a first object", || OUTPUTS.into_iter().any(is_stored));
    running.signal(libc::SIGSTOP);
    running
}

#[test]
fn who_does_not_belong_is_kept_out_and_what_was_made_is_used() {
    let made = Job::new("parts-out", SEVERAL);
    let held = slow(&made, "1/3");
    // The same partition twice, another number of partitions, and one process for all.
    made.run("1/3").fails(2, &["another process is writing this output"]);
    made.run("0/2").fails(2, &["1-of-3", "another process is writing this output"]);
    halostream(&made.folder.0, &["run", "job.toml"]).fails(2, &["another process is writing this output"]);
    let kept = halostream(&made.folder.0, &["clean", "."]).done();
    assert!(kept.out.contains("its job is running"), "{}", kept.out);
    // Its neighbours go on.
    made.run("0/3").done();
    held.signal(libc::SIGKILL);
    drop(held);
    assert!(made.nothing_stands());
    // One process makes what lacks: what a partition noted is not made again.
    let of_part = count(&report(&made.folder.0), "objects_written");
    halostream(&made.folder.0, &["run", "job.toml", "--quiet", "--report", "r.json"]).done();
    let rest = count(&report(&made.folder.0), "objects_written");
    let objects: usize = made.want.iter().map(|tree| tree.keys().filter(|key| is_object(key)).count()).sum();
    assert!(of_part > 0 && rest <= objects as u64 - of_part, "{of_part} + {rest} of {objects}");
    made.is_complete();
    made.clear();
    // As does another number of partitions.
    made.run("2/3").done();
    made.run("0/2").done();
    assert!(made.nothing_stands());
    let report_of = |part: &str| {
        made.run(part).done();
        count(&report(&made.folder.0), "objects_written")
    };
    assert!(report_of("1/2") < objects as u64 / 2);
    made.is_complete();
    // Leftovers of partitions go like others.
    made.clear();
    made.run("2/3").done();
    let cleaned = halostream(&made.folder.0, &["clean", "."]).done();
    assert!(cleaned.out.contains("removed 2 folders"), "{}", cleaned.out);
    assert_eq!(names(&made.folder.0), ["job.toml", "r.json"]);
}

#[test]
fn a_publishing_that_was_cut_short_is_finished_by_any() {
    let made = Job::new("parts-cut", SEVERAL);
    ["0/2", "1/2"].iter().for_each(|part| drop(made.run(part).done()));
    // As after a kill between the two names, with the ledgers still there.
    let hash = crate::hash(&made.folder, SEVERAL);
    let (last, at) = (made.folder.path(OUTPUTS[1]), halostream::engine::staging::name(&made.folder.path(OUTPUTS[1]), &hash));
    std::fs::rename(&last, &at).expect("a rename");
    for store in [made.folder.path(OUTPUTS[0]), at] {
        let mut ledger = halostream::engine::journal::Ledger::open(&store, &hash, true).expect("a ledger").0;
        ledger.note_complete().expect("noted");
    }
    let told = made.run("0/2").done().out;
    assert!(told.contains("it was complete before, and has its name now"), "{told}");
    made.is_complete();
}

#[test]
fn an_input_that_changes_costs_the_partition_that_saw_it() {
    let folder = Folder::new("parts-changed");
    let text = "[input]\npath = \"in.zarr\"\n[[step]]\nop = \"abs\"\n[output]\npath = \"out.zarr\"\n[engine]\nworkers = 1\n";
    job(&folder, text);
    let sample = ["sample", "volume", "in.zarr", "--shape", "8,64,64", "--chunks", "1,64,64", "--quiet"];
    halostream(&folder.0, &sample).done();
    halostream(&folder.0, &["run", "job.toml", "--quiet", "--partition", "0/2"]).done();
    let other = [&sample[..], &["--seed", "3"]].concat();
    std::fs::remove_dir_all(folder.path("in.zarr")).expect("the input");
    halostream(&folder.0, &other).done();
    // It is another job now: the old partition's share lies in a folder of its own.
    halostream(&folder.0, &["run", "job.toml", "--quiet", "--partition", "1/2"]).done();
    assert!(!folder.path("out.zarr").exists());
    halostream(&folder.0, &["run", "job.toml", "--quiet", "--partition", "0/2"]).done();
    halostream(&folder.0, &["run", "job.toml", "--quiet", "--set", "output.path=one.zarr"]).done();
    assert_eq!(read(&folder.path("out.zarr"), None), read(&folder.path("one.zarr"), None));
}

/// What one partition stores of a job; `ends` decides how it ends. Returns how many objects stood already.
fn store_all(folder: &Folder, text: &str, share: Option<Partition>, ends: impl FnOnce(Staging)) -> u64 {
    let plan = common::plan(text, &folder.0).expect("a job");
    let plan = match share {
        Some(share) => plan.share(share).expect("a share"),
        None => plan,
    };
    let Ok(Prepared::Ready { staging, sinks, stored, .. }) = prepare(&plan, true) else { panic!("nothing to make") };
    for (sink, output) in sinks.iter().zip(&plan.outputs) {
        let (count, grid) = (output.layout.object_grid().cells().expect("few"), output.layout.object_grid());
        let own = share.map_or(0..count, |share| share.of(count));
        let values = vec![1u8; output.layout.object_bytes() as usize];
        for_each_cell::<()>(&grid.all(), |object| {
            if own.contains(&output.layout.object_number(object)) {
                sink.put(object, &values).expect("stored");
            }
            Ok(())
        })
        .expect("all of them");
    }
    ends(staging);
    stored
}

#[test]
fn what_a_partition_made_of_a_changed_input_counts_for_nobody() {
    let folder = Folder::new("parts-disowned");
    let text = "[input]\npath = \"sample:volume\"\nshape = [8, 16, 16]\nchunks = [1, 16, 16]\n[output]\npath = \"out.zarr\"\n";
    let [first, second] = [0, 1].map(|index| Partition::new(index, 2));
    // Its names stand, in this boot: of a run that was only stopped they count, ...
    assert_eq!(store_all(&folder, text, first, |staging| staging.keep(4)), 0);
    assert_eq!(store_all(&folder, text, first, Staging::abandon), 4);
    // ... of one whose input changed they do not, neither for itself nor for others.
    assert_eq!(store_all(&folder, text, first, Staging::abandon), 0);
    assert_eq!(store_all(&folder, text, Partition::new(0, 3), Staging::abandon), 0);
    assert_eq!(store_all(&folder, text, second, |staging| staging.keep(4)), 0);
    assert_eq!(store_all(&folder, text, None, |staging| staging.keep(8)), 0);
}

#[test]
fn what_can_not_be_parted_is_refused() {
    let folder = Folder::new("parts-refused");
    job(&folder, SEVERAL);
    halostream(&folder.0, &["run", "job.toml", "--partition", "0/2", "--no-sync"]).fails(2, &["--no-sync", "--partition"]);
    halostream(&folder.0, &["run", "job.toml", "--partition", "0/2", "--verify", "3"]).fails(2, &["--verify", "--partition"]);
    halostream(&folder.0, &["run", "job.toml", "--partition", "2/2"]).fails(2, &["partitions go from 0 to 1"]);
    let points = "[input]\npath = \"sample:slc\"\nshape = [40, 40, 11]\n[[step]]\nop = \"ks_test\"\nhalf_window = [2, 2]\n[output]\npath = \"c.zarr\"\nfrom = \"ks_test.k\"\npoints = \"index\"\n";
    job(&folder, points);
    halostream(&folder.0, &["run", "job.toml", "--partition", "0/2"]).fails(2, &["run the job without --partition"]);
    job(&folder, &points.replace("points = \"index\"\n", "").replace("c.zarr", "c.npy"));
    halostream(&folder.0, &["run", "job.toml", "--partition", "0/2"]).fails(2, &["can't write one file together"]);
    assert_eq!(names(&folder.0), ["job.toml"]);
}
