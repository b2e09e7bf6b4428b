//! Replays every file of `fuzz/corpus` through what the fuzzers call: no panic, and no allocation beyond what so small an
//! input can be worth.

#[path = "../fuzz/src/entry.rs"]
mod entry;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The largest single allocation.
const MOST_BYTES: usize = 64 << 20;

struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system's allocator; the size is only noted.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Calls `run` with the name and bytes of every file of a target; a file that is slow or large is named.
fn replay(target: &str, run: impl Fn(&str, &[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("the corpus is there").map(|e| e.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let name = file.file_name().and_then(|n| n.to_str()).expect("a plain name");
        let bytes = std::fs::read(&file).expect("a corpus file");
        println!("{target}/{name}");
        let started = Instant::now();
        run(name, &bytes);
        assert!(started.elapsed() < Duration::from_secs(20), "{target}/{name} took {:?}", started.elapsed());
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest <= MOST_BYTES, "{target}/{name}: {largest} bytes were allocated at once");
    }
}

#[test]
fn metadata() {
    replay("metadata", |_, bytes| entry::metadata(bytes));
}

#[test]
fn chunk() {
    replay("chunk", |name, bytes| {
        let read = entry::chunk(bytes);
        // The seeds are whole chunks of their form; findings are damaged ones.
        assert!(read > 0 || !name.starts_with("seed-"), "{name} is no chunk of its form");
    });
}

#[test]
fn job() {
    replay("job", |_, bytes| entry::job(bytes));
}

#[test]
fn protocol() {
    replay("protocol", |_, bytes| entry::protocol(bytes));
}

#[test]
fn park() {
    replay("park", |_, bytes| entry::park(bytes));
}
