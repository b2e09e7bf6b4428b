//! Every file-system call of small jobs goes wrong once, in every way that it can: refused, told as failed though done, done
//! in part, slow, the last one before a kill or before the power fails. The run ends in the right bytes or in an error that
//! names a file; nothing stands under a final name but whole outputs; the next run gets to the right bytes and leaves
//! nothing beside them. All calls are enumerated, none sampled.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use halostream::array::DType;
use halostream::config::CodecName;
use halostream::engine::journal::{Grouping, NAME, ObjectId};
use halostream::engine::publish::{Prepared, prepare_with};
use halostream::engine::{self, Observer};
use halostream::files::faults::{Fate, Faults, Kind, inject};
use halostream::plan::moving::Moving;
use halostream::writer::store::WriteStore;
use halostream::writer::{OutputLayout, Sink, zarr};

use crate::common::{Array, Folder, codec, plan, write};
use crate::{halostream, job, names, staged, tree};

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Not done.
    Refused(i32),
    /// Done, and told as failed.
    Late,
    /// The first byte is moved; then the rest in another call.
    Short,
    /// Half of it is moved (or removed), then an error.
    Torn(i32),
    /// The file ends too early.
    Ends,
    Slow,
    /// The process is killed before the call, in its middle, after it.
    KillBefore,
    KillWithin,
    KillAfter,
    /// The same, and what was not synced is lost.
    PowerBefore,
    PowerAfter,
}

use Fault::*;

fn faults_of(kind: Kind) -> &'static [Fault] {
    match kind {
        Kind::Resolve | Kind::Stat | Kind::List | Kind::Open => &[Refused(libc::EIO), KillBefore],
        Kind::Lock => &[Refused(libc::ENOLCK), KillBefore],
        Kind::Read => &[Refused(libc::EIO), Short, Ends, Slow, KillBefore],
        Kind::Write => {
            &[Refused(libc::ENOSPC), Torn(libc::ENOSPC), Torn(libc::EIO), Late, Short, KillWithin, PowerBefore, PowerAfter]
        }
        Kind::Sync | Kind::SyncFileSystem => &[Refused(libc::EIO), Refused(libc::ENOSPC), KillBefore, PowerBefore, PowerAfter],
        Kind::RemoveTree => &[Refused(libc::EIO), Torn(libc::EIO), Late, KillBefore, KillWithin, KillAfter],
        Kind::Create | Kind::MakeFolder => &[Refused(libc::EROFS), Refused(libc::ENOSPC), Late, KillAfter],
        Kind::Rename | Kind::Exchange | Kind::Remove | Kind::Cut => {
            &[Refused(libc::EROFS), Late, KillBefore, KillAfter, PowerBefore, PowerAfter]
        }
    }
}

/// A call: what it does, the path below the job's folder, how many of these came before.
type Call = (Kind, String, usize);

/// Lets one call go wrong, and notes all of them.
struct Script {
    folder: PathBuf,
    goal: Option<(Call, Fault)>,
    seen: Mutex<BTreeMap<(Kind, String), usize>>,
    has_struck: AtomicBool,
    is_dead: AtomicBool,
    /// Bytes of each file (by inode) that have been synced.
    durable: Mutex<HashMap<u64, u64>>,
}

impl Script {
    fn new(folder: &Path, goal: Option<(Call, Fault)>) -> Arc<Self> {
        // What stands is of long ago.
        let size = |path: &PathBuf| std::fs::metadata(folder.join(path)).map(|m| (m.ino(), m.len())).ok();
        let durable = tree(folder).keys().filter_map(size).collect();
        Arc::new(Self {
            folder: folder.to_path_buf(),
            goal,
            seen: Mutex::default(),
            has_struck: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            durable: Mutex::new(durable),
        })
    }

    fn calls(&self) -> Vec<Call> {
        let seen = self.seen.lock().expect("no panic");
        seen.iter().flat_map(|((kind, path), n)| (0..*n).map(|i| (*kind, path.clone(), i))).collect()
    }

    fn die(&self, fault: Fault) {
        self.is_dead.store(true, Ordering::SeqCst);
        if matches!(fault, PowerBefore | PowerAfter) {
            let durable = self.durable.lock().expect("no panic");
            for output in names(&self.folder).iter().filter(|name| *name != "x.zarr") {
                let output = self.folder.join(output);
                for path in tree(&output).keys() {
                    let is_file = path.as_os_str().is_empty();
                    lose(&if is_file { output.clone() } else { output.join(path) }, &durable);
                }
            }
        }
    }
}

/// What was not synced comes back as zeros; and the machine has another boot.
fn lose(path: &Path, durable: &HashMap<u64, u64>) {
    let metadata = std::fs::metadata(path).expect("a file");
    let synced = durable.get(&metadata.ino()).copied().unwrap_or(0) as usize;
    let mut bytes = std::fs::read(path).expect("a file");
    bytes.iter_mut().skip(synced).for_each(|byte| *byte = 0);
    if path.ends_with(NAME) && bytes.len() > 8 {
        let end = 8 + u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize;
        let text = String::from_utf8_lossy(&bytes[8..end]).into_owned();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
        let head = text.replace(boot.trim(), &"0".repeat(boot.trim().len()));
        bytes.splice(8..end, head.bytes());
        let crc = crc32c::crc32c(head.as_bytes());
        if text != head {
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        }
    }
    // In place: the file keeps its inode, and its time.
    std::fs::write(path, bytes).expect("a file");
    let file = std::fs::File::options().write(true).open(path).expect("a file");
    file.set_modified(metadata.modified().expect("a time")).expect("a time");
}

impl Faults for Script {
    fn fate(&self, kind: Kind, path: &Path) -> Fate {
        if self.is_dead.load(Ordering::SeqCst) {
            return Fate::Refused(io::Error::from_raw_os_error(libc::EIO));
        }
        let below = path.strip_prefix(&self.folder).expect("a path below the folder");
        // Temporary names hold a counter.
        let is_temporary = path.extension().is_some_and(|e| e == "tmp");
        let name = if is_temporary { below.with_file_name("*.tmp") } else { below.to_path_buf() }.display().to_string();
        let mut seen = self.seen.lock().expect("no panic");
        let count = seen.entry((kind, name.clone())).or_default();
        *count += 1;
        let (call, is_last) = ((kind, name, *count - 1), self.has_struck.load(Ordering::SeqCst));
        drop(seen);
        let fault = match &self.goal {
            Some((goal, fault)) if !is_last && *goal == call => *fault,
            _ => return Fate::Done,
        };
        self.has_struck.store(true, Ordering::SeqCst);
        let dead = || io::Error::from_raw_os_error(libc::EIO);
        match fault {
            Refused(errno) => Fate::Refused(io::Error::from_raw_os_error(errno)),
            Late => Fate::Late(dead()),
            Short => Fate::Part(1, None),
            Torn(errno) => Fate::Part(3, Some(io::Error::from_raw_os_error(errno))),
            Ends => Fate::Part(1, Some(io::ErrorKind::UnexpectedEof.into())),
            Slow => {
                std::thread::sleep(Duration::from_millis(30));
                Fate::Done
            }
            KillBefore | PowerBefore => {
                self.die(fault);
                Fate::Refused(dead())
            }
            KillWithin => {
                self.die(fault);
                Fate::Part(3, Some(dead()))
            }
            // `happened` kills.
            KillAfter | PowerAfter => Fate::Late(dead()),
        }
    }

    fn happened(&self, kind: Kind, path: &Path, is_done: bool) {
        if !is_done {
            return;
        }
        let note = |path: &Path| {
            if let Ok(found) = std::fs::metadata(path).or_else(|_| std::fs::symlink_metadata(path)) {
                self.durable.lock().expect("no panic").insert(found.ino(), found.len());
            }
        };
        match kind {
            Kind::Sync if path.is_file() => note(path),
            Kind::SyncFileSystem => tree(&self.folder).keys().for_each(|path| note(&self.folder.join(path))),
            _ => {}
        }
        let is_goal = |((goal, _, _), fault): &(Call, Fault)| *goal == kind && matches!(fault, KillAfter | PowerAfter);
        if self.has_struck.load(Ordering::SeqCst)
            && !self.is_dead.load(Ordering::SeqCst)
            && let Some((_, fault)) = self.goal.as_ref().filter(|goal| is_goal(goal))
        {
            self.die(*fault);
        }
    }
}

/// The ledger notes every other object.
struct Pairs;

impl Grouping for Pairs {
    fn fill(&self, group: &mut Vec<ObjectId>, told: &Receiver<ObjectId>, _end: &Receiver<Infallible>) -> bool {
        told.recv().map(|object| group.push(object)).is_err()
    }
}

struct Teller {
    stored: AtomicU64,
    sinks: Vec<Arc<dyn Sink>>,
    teller: Mutex<Option<Sender<ObjectId>>>,
}

impl Observer for Teller {
    fn object_written(&self, target: usize, object: &[u64], _: u64) {
        self.stored.fetch_add(1, Ordering::SeqCst);
        if let Some(teller) = &*self.teller.lock().expect("no panic") {
            // A ledger that cannot be written has no ear; the run ends with its error.
            let noted = self.sinks[target].noted(object);
            let _ = noted.into_iter().try_for_each(|number| teller.send((target as u32, number)));
        }
    }
}

/// The job from its text to its end, as the command line runs it.
fn go(text: &str, folder: &Path) -> Result<(), String> {
    let plan = Arc::new(plan(text, folder)?);
    let Prepared::Ready { staging, sinks, done, .. } = prepare_with(&plan, true, Arc::new(Pairs)).map_err(|e| e.to_string())?
    else {
        return Ok(());
    };
    let kept: u64 = (0..sinks.len()).map(|t| done.of_target(t)).sum();
    let teller = Mutex::new(staging.teller());
    let teller = Arc::new(Teller { stored: AtomicU64::new(kept), sinks: sinks.clone(), teller });
    let result = engine::resume(plan.clone(), sinks, done, teller.clone(), Arc::new(AtomicBool::new(false)));
    *teller.teller.lock().expect("no panic") = None;
    staging.end(&plan, result, teller.stored.load(Ordering::SeqCst)).map(|_| ()).map_err(|e| e.to_string())
}

type Trees = Vec<BTreeMap<PathBuf, Vec<u8>>>;

struct Enumeration<'j> {
    folder: Folder,
    text: &'j str,
    outputs: &'j [&'j str],
    /// Stands before the job, where it is to be overwritten.
    old: Option<&'j str>,
    want: Trees,
    before: Trees,
}

impl<'j> Enumeration<'j> {
    fn new(name: &str, text: &'j str, outputs: &'j [&'j str], old: Option<&'j str>) -> Self {
        Self::over(name, text, outputs, old, |x, array| write(x, array, &[3, 4], None, CodecName::Zstd))
    }

    /// The same over an input that is made in another way.
    fn over(name: &str, text: &'j str, outputs: &'j [&'j str], old: Option<&'j str>, make: impl Fn(&Path, &Array)) -> Self {
        let folder = Folder::in_memory(name);
        let x: Vec<i16> = (0..24).map(|i| i * 7 % 60).collect();
        make(&folder.path("x.zarr"), &Array::new(&[6, 4], &x));
        let mut made = Self { folder, text, outputs, old, want: Trees::new(), before: Trees::new() };
        made.reset();
        made.before = made.trees();
        go(text, &made.folder.0).expect("a run that nobody hurts");
        made.want = made.trees();
        made
    }

    fn trees(&self) -> Trees {
        self.outputs.iter().map(|output| tree(&self.folder.path(output))).collect()
    }

    /// To what was there before the job.
    fn reset(&self) {
        for name in names(&self.folder.0).iter().filter(|name| *name != "x.zarr") {
            let path = self.folder.path(name);
            let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            removed.expect("it was there");
        }
        if let Some(old) = self.old {
            go(old, &self.folder.0).expect("the old output");
        }
    }

    fn calls(&self) -> Vec<Call> {
        self.reset();
        let script = Script::new(&self.folder.0, None);
        let injected = inject(&self.folder.0, script.clone());
        go(self.text, &self.folder.0).expect("a run that is only watched");
        drop(injected);
        assert!(self.trees() == self.want);
        script.calls()
    }

    /// What stands under a final name is whole: the new output, the old one, or nothing.
    fn named_is_whole(&self) -> bool {
        self.outputs.iter().enumerate().all(|(n, output)| {
            let mut got = tree(&self.folder.path(output));
            got.remove(Path::new(NAME));
            let is_there = self.folder.path(output).exists();
            got == self.want[n] || (got == self.before[n] && (is_there || self.old.is_none()))
        })
    }

    /// One run with one fault, then one without: what is wrong with them, and whether the fault met its call.
    fn strike(&self, call: &Call, fault: Fault) -> (Option<String>, bool) {
        let script = Script::new(&self.folder.0, Some((call.clone(), fault)));
        let injected = inject(&self.folder.0, script.clone());
        let ended = go(self.text, &self.folder.0);
        drop(injected);
        let has_struck = script.has_struck.load(Ordering::SeqCst);
        let is_kill = matches!(fault, KillBefore | KillWithin | KillAfter | PowerBefore | PowerAfter);
        let is_clear = |error: &str| {
            let words = ["Input/output error", "No space left", "Read-only", "No locks", "torn"];
            error.contains(&self.folder.0.display().to_string()) && words.iter().any(|word| error.contains(word))
        };
        let mut wrong = match &ended {
            _ if !self.named_is_whole() => Some("an output has its name and is not whole".to_owned()),
            Err(error) if !is_kill && !is_clear(error) => Some(format!("not clear: {error}")),
            Err(error) if matches!(fault, Slow | Short) => Some(format!("it is no reason to fail: {error}")),
            _ => None,
        };
        if let Err(error) = go(self.text, &self.folder.0) {
            wrong = wrong.or(Some(format!("the next run: {error}")));
        } else if self.trees() != self.want {
            wrong = wrong.or(Some("the next run: other bytes".to_owned()));
        }
        let left = names(&self.folder.0);
        // Beside a file lies its record.
        let files = self.outputs.iter().filter(|output| output.ends_with(".npy")).count();
        if left.len() != self.outputs.len() + files + 1 {
            wrong = wrong.or(Some(format!("left behind: {left:?}")));
        }
        (wrong.map(|wrong| format!("{fault:?} at {call:?}, which ended in {ended:?}: {wrong}")), has_struck)
    }

    fn run(&self) {
        let calls = self.calls();
        let (mut pairs, mut missed, mut problems) = (0, 0, Vec::new());
        for call in &calls {
            for fault in faults_of(call.0) {
                self.reset();
                let (problem, has_struck) = self.strike(call, *fault);
                problems.extend(problem);
                pairs += 1;
                missed += u32::from(!has_struck);
            }
        }
        println!("{} calls, {pairs} pairs of a call and a fault, {missed} calls not met again", calls.len());
        assert!(problems.is_empty(), "{} of {pairs}:\n{}", problems.len(), problems.join("\n"));
        assert!(missed * 50 <= pairs, "{missed} of {pairs} faults met no call");
    }
}

#[test]
fn every_call_of_a_map() {
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"cast\"\ndtype = \"float64\"\n\
                [output]\npath = \"out.zarr\"\nchunks = [2, 4]\n[engine]\nworkers = 1\nmemory = \"16MiB\"\n";
    Enumeration::new("fault-map", text, &["out.zarr"], None).run();
}

#[test]
fn every_call_of_a_job_that_only_moves_bytes() {
    let text = "[input]\npath = \"x.zarr\"\n[output]\npath = \"out.zarr\"\ncodec = \"none\"\n\
                [engine]\nworkers = 1\nmemory = \"16MiB\"\n";
    let make = |x: &Path, array: &Array| write(x, array, &[3, 4], None, CodecName::None);
    let made = Enumeration::over("fault-moving", text, &["out.zarr"], None, make);
    assert!(plan(text, &made.folder.0).expect("a plan").phases[0].moving.is_some());
    made.run();
}

#[test]
fn every_call_of_a_job_that_folds_by_columns() {
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"max\"\naxis = 0\n[output]\npath = \"out.zarr\"\ncodec = \"none\"\n\
                chunks = [1]\n[engine]\nblock = [3, 1]\nworkers = 1\nmemory = \"16MiB\"\n";
    let make = |x: &Path, array: &Array| write(x, array, &[3, 1], None, CodecName::None);
    let made = Enumeration::over("fault-columns", text, &["out.zarr"], None, make);
    assert_eq!(plan(text, &made.folder.0).expect("a plan").phases[0].moving, Some(Moving::Columns));
    made.run();
}

#[test]
fn every_call_of_a_job_that_is_swept() {
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"gaussian_filter\"\nsigma = 0.5\n[output]\npath = \"out.zarr\"\n\
                codec = \"none\"\n[engine]\nworkers = 1\nmemory = \"16MiB\"\n";
    let make = |x: &Path, array: &Array| {
        let values: Vec<f32> = array.values::<i16>().iter().cycle().take(2 * 18 * 160).map(|v| f32::from(*v)).collect();
        write(x, &Array::new(&[2, 18, 160], &values), &[2, 9, 160], None, CodecName::None);
    };
    let made = Enumeration::over("fault-sweeps", text, &["out.zarr"], None, make);
    assert_eq!(plan(text, &made.folder.0).expect("a plan").phases[0].moving, Some(Moving::Sweeps));
    made.run();
}

#[test]
fn every_call_of_a_fold_with_two_outputs() {
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"cast\"\ndtype = \"float64\"\n[[step]]\nop = \"sum\"\naxis = 0\n\
                [outputs.total]\npath = \"total.zarr\"\nfrom = \"sum\"\nchunks = [4]\n\
                [outputs.cast]\npath = \"out.zarr\"\nfrom = \"cast\"\nchunks = [3, 2]\nshards = [3, 4]\n\
                [engine]\nworkers = 1\nmemory = \"16MiB\"\n";
    Enumeration::new("fault-fold", text, &["out.zarr", "total.zarr"], None).run();
}

#[test]
fn every_call_of_a_list_of_points() {
    let text = "[input]\npath = \"x.zarr\"\n[output]\npath = \"out.zarr\"\npoints = \"index\"\nchunks = [5]\n\
                [engine]\nworkers = 1\nmemory = \"16MiB\"\n";
    Enumeration::new("fault-points", text, &["out.zarr"], None).run();
}

/// Coordinates that are copied, sliced and of strings, and consolidated metadata: all there or no output.
#[test]
fn every_call_of_a_job_that_carries_coordinates() {
    let text = "[input]\npath = \"x.zarr\"\narray = \"u\"\nselect = \"1:, :\"\n\
                [output]\npath = \"out.zarr\"\nchunks = [3, 4]\n[engine]\nworkers = 1\nmemory = \"16MiB\"\n";
    let make = |x: &Path, array: &Array| {
        let layout = |shape: &[u64], dtype, names: &[&str]| OutputLayout {
            shape: shape.to_vec(),
            dtype,
            chunks: shape.to_vec(),
            shards: None,
            codec: codec(CodecName::Zstd),
            zarr_format: 2,
            dimension_names: names.iter().map(|name| Some((*name).to_owned())).collect(),
            attributes: Default::default(),
            points: None,
            is_remote: false,
        };
        let mut of_u = layout(&[6, 4], DType::I16, &["y", "x"]);
        of_u.attributes.insert("coordinates".to_owned(), "name".into());
        zarr::create(x, "u", of_u, false).expect("a store").put(&[0, 0], &array.bytes).expect("a chunk");
        zarr::create(x, "y", layout(&[6], DType::U8, &["y"]), false).expect("a store").put(&[0], &[9; 6]).expect("a chunk");
        zarr::create(x, "x", layout(&[4], DType::U8, &["x"]), false).expect("a store").put(&[0], &[8; 4]).expect("a chunk");
        let store = WriteStore::folder(x).expect("a folder");
        let names = zarr::create_strings_in(store, "name", layout(&[6], DType::U8, &["y"]), false).expect("a store");
        names.put_strings(&[0], &["a", "b", "c", "d", "e", "f"].map(str::to_owned)).expect("a chunk");
        let document = "{\"zarr_consolidated_format\": 1, \"metadata\": {\".zgroup\": {\"zarr_format\": 2}}}";
        std::fs::write(x.join(".zmetadata"), document).expect("a file");
    };
    Enumeration::over("fault-coordinates", text, &["out.zarr"], None, make).run();
}

#[test]
fn every_call_of_a_job_that_overwrites() {
    let of = |dtype: &str| {
        format!(
            "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"cast\"\ndtype = \"{dtype}\"\n[output]\npath = \"out.zarr\"\n\
             chunks = [6, 4]\nif_exists = \"overwrite\"\n[engine]\nworkers = 1\nmemory = \"16MiB\"\n"
        )
    };
    Enumeration::new("fault-over", &of("float64"), &["out.zarr"], Some(&of("int32"))).run();
}

#[test]
fn every_call_of_a_job_that_writes_a_file() {
    let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"cast\"\ndtype = \"float64\"\n[[step]]\nop = \"sum\"\naxis = 0\n\
                [outputs.cast]\npath = \"out.npy\"\nfrom = \"cast\"\n[outputs.total]\npath = \"total.zarr\"\nfrom = \"sum\"\n\
                [engine]\nworkers = 1\nmemory = \"16MiB\"\n";
    Enumeration::new("fault-file", text, &["out.npy", "total.zarr"], None).run();
}

#[test]
fn every_call_of_a_job_that_overwrites_a_file() {
    let of = |dtype: &str| {
        format!(
            "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"cast\"\ndtype = \"{dtype}\"\n[output]\npath = \"out.npy\"\n\
             if_exists = \"overwrite\"\n[engine]\nworkers = 1\nmemory = \"16MiB\"\n"
        )
    };
    Enumeration::new("fault-file-over", &of("float64"), &["out.npy"], Some(&of("int32"))).run();
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
