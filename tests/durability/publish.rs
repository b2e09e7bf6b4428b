//! A crash between any two steps of publishing, laid out by hand: the next run finishes, or has nothing to do, and leaves
//! nothing beside the outputs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use halostream::config::CodecName;
use halostream::engine::journal::Ledger;
use halostream::engine::staging;

use crate::common::{Array, Folder, write};
use crate::{halostream, hash, job, names, tree};

const OUTPUTS: [&str; 2] = ["a.zarr", "b.zarr"];

fn text(if_exists: &str) -> String {
    format!(
        "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"cast\"\ndtype = \"float64\"\n[[step]]\nop = \"sum\"\ninputs = [\"cast\"]\naxis = 0\n\
         [outputs.a]\npath = \"a.zarr\"\nfrom = \"cast\"\nif_exists = \"{if_exists}\"\n\
         [outputs.b]\npath = \"b.zarr\"\nfrom = \"sum\"\nif_exists = \"{if_exists}\"\n"
    )
}

/// Both outputs made and published, to be taken apart.
struct Made {
    folder: Folder,
    hash: String,
    want: Vec<BTreeMap<PathBuf, Vec<u8>>>,
}

impl Made {
    fn new(if_exists: &str) -> Self {
        let folder = Folder::new("publish");
        let x: Vec<i16> = (0..60).collect();
        write(&folder.path("x.zarr"), &Array::new(&[6, 10], &x), &[2, 5], None, CodecName::Zstd);
        job(&folder, &text(if_exists));
        halostream(&folder.0, &["run", "job.toml"]).done();
        let want = OUTPUTS.iter().map(|o| tree(&folder.path(o))).collect();
        let hash = hash(&folder, &text(if_exists));
        Self { folder, hash, want }
    }

    fn staged(&self, output: &str) -> PathBuf {
        staging::name(&self.folder.path(output), &self.hash)
    }

    fn aside(&self, output: &str) -> PathBuf {
        staging::aside(&self.staged(output))
    }

    /// Takes a name back: complete in its staging folder.
    fn unname(&self, output: &str, is_complete: bool) {
        std::fs::rename(self.folder.path(output), self.staged(output)).expect("a store");
        self.note(&self.staged(output), is_complete);
    }

    fn note(&self, at: &std::path::Path, is_complete: bool) {
        let (mut ledger, _) = Ledger::open(at, &self.hash, true).expect("a ledger");
        if is_complete {
            ledger.note_complete().expect("noted");
        }
    }

    /// What stood at an output's name before, to be replaced.
    fn old(&self, at: PathBuf) {
        write(&at, &Array::new::<u8>(&[3], &[1, 2, 3]), &[2], None, CodecName::None);
    }

    #[track_caller]
    fn is_finished(&self, said: &str) {
        let ended = halostream(&self.folder.0, &["run", "job.toml"]).done();
        assert!(ended.out.contains(said), "{}", ended.out);
        assert_eq!(ended.err, "");
        for (output, want) in OUTPUTS.iter().zip(&self.want) {
            assert!(tree(&self.folder.path(output)) == *want, "{output} is another one");
        }
        assert_eq!(names(&self.folder.0), ["a.zarr", "b.zarr", "job.toml", "x.zarr"]);
    }
}

const NAMED: &str = "it was complete before, and has its name now";
const NOTHING: &str = "nothing to do";

#[test]
fn a_crash_between_two_names() {
    // `error` refuses what stands, but never stops its own publishing half way.
    for if_exists in ["resume", "overwrite", "error"] {
        let made = || Made::new(if_exists);
        let both = made();
        both.unname("a.zarr", true);
        both.unname("b.zarr", true);
        both.is_finished(NAMED);

        let second = made();
        second.unname("b.zarr", true);
        second.is_finished(NAMED);

        // The first has its name, and its ledger still.
        let ledger = made();
        ledger.note(&ledger.folder.path("a.zarr"), true);
        ledger.unname("b.zarr", true);
        ledger.is_finished(NAMED);

        let all = made();
        all.note(&all.folder.path("b.zarr"), true);
        all.is_finished(NOTHING);
    }
}

#[test]
fn a_crash_between_two_notes() {
    // One ledger says complete, the other not yet: nothing is computed again.
    let made = Made::new("resume");
    made.unname("a.zarr", true);
    made.unname("b.zarr", false);
    made.is_finished("wrote ");
}

#[test]
fn a_crash_while_replacing() {
    // Swapped, the old one not removed yet, or in part.
    let swapped = Made::new("overwrite");
    swapped.note(&swapped.folder.path("a.zarr"), true);
    swapped.old(swapped.staged("a.zarr"));
    swapped.unname("b.zarr", true);
    swapped.old(swapped.folder.path("b.zarr"));
    swapped.is_finished(NAMED);

    let removing = Made::new("overwrite");
    removing.old(removing.staged("b.zarr"));
    std::fs::remove_file(removing.staged("b.zarr").join("zarr.json")).expect("metadata");
    removing.note(&removing.folder.path("b.zarr"), true);
    removing.is_finished(NOTHING);

    // What was replaced was a file.
    let file = Made::new("overwrite");
    std::fs::write(file.staged("b.zarr"), "notes").expect("a file");
    file.note(&file.folder.path("b.zarr"), true);
    file.is_finished(NOTHING);
}

#[test]
fn a_crash_while_replacing_in_steps() {
    // Where two names cannot be swapped at once: the old one is aside ...
    let first = Made::new("overwrite");
    first.unname("b.zarr", true);
    first.old(first.aside("b.zarr"));
    first.unname("a.zarr", true);
    first.is_finished(NAMED);

    let second = Made::new("overwrite");
    second.note(&second.folder.path("b.zarr"), true);
    second.old(second.aside("b.zarr"));
    second.is_finished(NOTHING);

    // It is not cleaned away while it is the only one.
    let only = Made::new("overwrite");
    std::fs::rename(only.folder.path("b.zarr"), only.aside("b.zarr")).expect("a store");
    let ended = halostream(&only.folder.0, &["clean", "b.zarr"]).done();
    assert!(ended.out.contains("the only copy of b.zarr; run its job again"), "{}", ended.out);
    only.is_finished("wrote ");
}

#[test]
fn leavings_of_a_swap_are_no_progress() {
    // Without a ledger of the job, what is in its staging folder is somebody else's.
    let made = Made::new("overwrite");
    let folder = &made.folder.0;
    std::fs::rename(folder.join("b.zarr"), made.staged("b.zarr")).expect("a store");
    let object = made.staged("b.zarr").join("c/0");
    std::fs::write(&object, "garbage").expect("an object");
    made.is_finished("wrote ");
}

#[test]
fn clean_removes_what_nobody_holds() {
    let made = Made::new("resume");
    made.unname("b.zarr", false);
    let folder = &made.folder.0;
    std::fs::create_dir_all(folder.join("below/.other.zarr.halostream-0123456789abcdef")).expect("a folder");
    std::fs::create_dir_all(folder.join("below/.other.zarr.halostream-notes")).expect("a folder");
    let (held, _) = Ledger::open(&made.staged("b.zarr"), &made.hash, true).expect("a ledger");
    let ended = halostream(folder, &["clean", "b.zarr"]).done();
    assert_eq!(ended.out, format!("kept .b.zarr.halostream-{}: its job is running\n", made.hash));
    drop(held);
    let ended = halostream(folder, &["clean", "."]).done();
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(lines.len() == 3 && lines[2].starts_with("removed 2 folders, "), "{lines:?}");
    assert!(!made.staged("b.zarr").exists());
    // Its name is no job's.
    assert_eq!(names(&folder.join("below")), [".other.zarr.halostream-notes"]);
    assert_eq!(halostream(folder, &["clean", "b.zarr"]).done().out, "nothing to remove at b.zarr\n");
    halostream(folder, &["clean", "nowhere/b.zarr"]).fails(2, &["nowhere/b.zarr: no such file or folder"]);
    assert!(folder.join("a.zarr").exists() && folder.join("x.zarr").exists());
}
