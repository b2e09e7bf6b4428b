//! `kill -9` at random moments: final names are absent or complete, the next run makes what was not stored and nothing
//! else, and the bytes are those of a run that nobody hurt.
//!
//! `HALOSTREAM_KILLS=200 cargo test --release --test durability kill` kills as often as it says.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::{Folder, Random, read};
use crate::{Running, count, halostream, job, names, objects, report, staged, tree};

const KS: &str = "[input]
path = \"sample:slc\"
shape = [160, 160, 11]
chunks = [32, 40, 11]
[[step]]
op = \"ks_test\"
half_window = [3, 3]
[output]
path = \"ks.zarr\"
chunks = [16, 16, 7, 7]
[engine]
block = [16, 16]
workers = 2
memory = \"256MiB\"
";

const MULTI: &str = "[input]
path = \"sample:slc\"
shape = [128, 128, 11]
chunks = [32, 32, 11]
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
[outputs.intensity]
path = \"intensity.zarr\"
from = \"intensity\"
chunks = [16, 16, 11]
shards = [32, 32, 11]
[outputs.total]
path = \"sum.zarr\"
from = \"sum\"
chunks = [32, 32]
[engine]
block = [32, 32]
workers = 2
memory = \"256MiB\"
";

fn kills(default: u64) -> u64 {
    std::env::var("HALOSTREAM_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

struct Victim {
    folder: Folder,
    outputs: Vec<(&'static str, Vec<Option<&'static str>>)>,
    /// What an unhurt run made, per output.
    want: Vec<BTreeMap<PathBuf, Vec<u8>>>,
    blocks: u64,
    objects: u64,
    /// Of an unhurt run, from its start to its end.
    takes: Duration,
    random: Random,
}

/// What happened over all kills.
#[derive(Debug, Default)]
struct Tally {
    before_staging: u64,
    while_running: u64,
    too_late: u64,
    /// Kills after which some outputs or all had their names.
    named: u64,
    objects_kept: u64,
    blocks_resumed: u64,
}

impl Victim {
    fn new(name: &str, text: &str, outputs: Vec<(&'static str, Vec<Option<&'static str>>)>) -> Self {
        let folder = Folder::new(name);
        job(&folder, text);
        let since = Instant::now();
        halostream(&folder.0, &["run", "job.toml", "--quiet", "--report", "r.json"]).done();
        let takes = since.elapsed();
        let report = report(&folder.0);
        let want = outputs.iter().map(|(path, _)| tree(&folder.path(path))).collect();
        let (blocks, objects) = (count(&report, "blocks_total"), count(&report, "objects_written"));
        let victim = Self { folder, outputs, want, blocks, objects, takes, random: Random(objects) };
        victim.clear();
        victim
    }

    fn clear(&self) {
        for (path, _) in &self.outputs {
            let at = self.folder.path(path);
            let removed = if at.is_dir() { std::fs::remove_dir_all(at) } else { std::fs::remove_file(at) };
            removed.expect("an output");
        }
    }

    /// Outputs that have their name are complete: they can be opened and hold what they have to.
    fn check_named(&self) -> u64 {
        let mut named = 0;
        for ((path, arrays), want) in self.outputs.iter().zip(&self.want) {
            let at = self.folder.path(path);
            if !at.exists() {
                continue;
            }
            named += 1;
            let mut got = tree(&at);
            got.remove(&PathBuf::from(".halostream-ledger"));
            assert!(got == *want, "{path} stands under its name and is not complete");
            arrays.iter().for_each(|array| assert!(!read(&at, *array).bytes.is_empty()));
        }
        named
    }

    /// Objects stored so far, named or staged.
    fn stored(&self) -> u64 {
        let count = |path: &&str| {
            let at = self.folder.path(path);
            if path.ends_with(".npy") {
                // A mark for each object of a file; the only output there is.
                let marks = staged(&at).and_then(|staged| std::fs::read(staged.join("stored")).ok()).unwrap_or_default();
                return if at.exists() { self.objects } else { marks.iter().filter(|mark| **mark == 1).count() as u64 };
            }
            let at = if at.exists() { Some(at) } else { staged(&at) };
            at.map_or(0, |at| objects(&at).len() as u64)
        };
        self.outputs.iter().map(|(path, _)| count(path)).sum()
    }

    fn kill_often(&mut self, kills: u64) {
        let mut tally = Tally::default();
        for n in 0..kills {
            let sync: &[&str] = if n % 2 == 0 { &["--no-sync"] } else { &[] };
            let running = Running::start(&self.folder.0, &[&["run", "job.toml", "--quiet"], sync].concat());
            // Startup and publishing are short: the middle is what a uniform moment hits, so the ends get more.
            let takes = self.takes.as_micros() as u64;
            let moment = match n % 4 {
                0 => self.random.range(0, takes / 4),
                1 => self.random.range(takes * 3 / 4, takes * 9 / 8),
                _ => self.random.range(0, takes),
            };
            std::thread::sleep(Duration::from_micros(moment));
            running.signal(libc::SIGKILL);
            drop(running);
            let named = self.check_named();
            let kept = self.stored();
            let is_staged = self.outputs.iter().any(|(path, _)| staged(&self.folder.path(path)).is_some());
            match (named == self.outputs.len() as u64, is_staged) {
                (true, false) => {
                    // The machine is faster than it was: nothing is gained by being late again.
                    self.takes = self.takes * 9 / 10;
                    tally.too_late += 1;
                }
                (false, false) => tally.before_staging += 1,
                _ => tally.while_running += 1,
            }
            tally.named += u64::from(named > 0);
            if n % 3 == 2 && n + 1 < kills {
                continue; // the next one is killed too
            }
            let since = Instant::now();
            let sync: &[&str] = if self.random.range(0, 1) == 0 { &["--no-sync"] } else { &[] };
            let args = [&["run", "job.toml", "--quiet", "--report", "r.json"], sync].concat();
            halostream(&self.folder.0, &args).done();
            let report = report(&self.folder.0);
            let (computed, resumed) = (count(&report, "blocks_computed"), count(&report, "blocks_resumed"));
            assert_eq!(computed + resumed, self.blocks, "{report}");
            // Everything that had its name in time counts: what is made again is what was in flight.
            assert_eq!(count(&report, "objects_written"), self.objects - kept, "{kept} objects were stored");
            tally.objects_kept += kept;
            tally.blocks_resumed += resumed;
            if computed == self.blocks {
                self.takes = (self.takes + since.elapsed()) / 2;
            }
            assert_eq!(self.check_named(), self.outputs.len() as u64);
            let mut left = names(&self.folder.0);
            let is_record = |name: &String| name.ends_with(".npy.halostream.json");
            left.retain(|name| name != "job.toml" && name != "r.json" && self.outputs.iter().all(|(path, _)| path != name));
            left.retain(|name| !is_record(name));
            assert!(left.is_empty(), "left beside the outputs: {left:?}");
            let clean = self.outputs.iter().all(|(path, _)| !self.folder.path(path).join(".halostream-ledger").exists());
            assert!(clean, "a ledger was left");
            self.clear();
        }
        println!("{kills} kills, a run takes {:?}, {} objects: {tally:?}", self.takes, self.objects);
        assert!(kills < 8 || tally.while_running > 0, "no kill hit a run: {tally:?}");
    }
}

#[test]
fn kill_one_output() {
    let mut victim = Victim::new("kill-one", KS, vec![("ks.zarr", vec![Some("dist"), Some("p")])]);
    victim.kill_often(kills(15));
}

#[test]
fn kill_a_file() {
    let text = KS.replace("path = \"ks.zarr\"\nchunks = [16, 16, 7, 7]", "path = \"ks.npy\"\nfrom = \"ks_test.dist\"");
    Victim::new("kill-file", &text, vec![("ks.npy", vec![])]).kill_often(kills(12));
}

#[test]
fn kill_several_outputs() {
    let outputs = vec![("ks.zarr", vec![Some("dist"), Some("p")]), ("intensity.zarr", vec![None]), ("sum.zarr", vec![None])];
    Victim::new("kill-multi", MULTI, outputs).kill_often(kills(8));
}
