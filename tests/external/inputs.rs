//! Arrays that a program answers for (`[input] command`).

use std::time::{Duration, Instant};

use crate::common::{Folder, Random, child, plan, read, run};

/// An input of this shape from the test child.
fn input(shape: &[u64], chunks: &[u64], function: &str, more: &str) -> String {
    format!(
        "[input]\ncommand = [{:?}]\nshape = {shape:?}\nchunks = {chunks:?}\ndtype = 'float64'\n\
         params = {{ function = '{function}', shape = {shape:?} }}\n{more}",
        child().display().to_string()
    )
}

fn numbers(count: u64) -> Vec<f64> {
    (0..count).map(|n| n as f64).collect()
}

#[test]
fn chunks_come_from_a_program() {
    let mut r = Random(12);
    for case in 0..8 {
        let folder = Folder::new("command");
        let shape: Vec<u64> = (0..r.range(1, 3)).map(|_| r.range(1, 15)).collect();
        let chunks: Vec<u64> = shape.iter().map(|n| r.range(1, n + 1)).collect();
        let engine = format!("[engine]\nworkers = {}\nmemory = '{}'\n", r.range(1, 3), r.pick(&["4MiB", "1GiB"]));
        let text = input(&shape, &chunks, "halo_only", "") + "[output]\npath = 'out.zarr'\n" + &engine;
        run(&text, &folder.0).unwrap_or_else(|e| panic!("case {case}: {e}\n{text}"));
        let got = read(&folder.path("out.zarr"), None);
        assert_eq!((&got.shape, got.values::<f64>()), (&shape, numbers(shape.iter().product())), "case {case}\n{text}");
    }
}

#[test]
fn parts_and_lists_of_it_and_several_phases() {
    let folder = Folder::new("command-parts");
    std::fs::write(folder.path("keep.txt"), "1\n4\n").expect("a list");
    let more = "select = '::2, :'\nkeep = [{ axis = 1, file = 'keep.txt' }]\n";
    run(&(input(&[6, 5], &[4, 2], "halo_only", more) + "[output]\npath = 'out.zarr'\n"), &folder.0).expect("a run");
    assert_eq!(read(&folder.path("out.zarr"), None).values::<f64>(), [1., 4., 11., 14., 21., 24.]);
    // Readers end with their phase, and their children with them: the next phase starts its own.
    let steps = "[[step]]\nop = 'max'\n[[step]]\nop = 'expression'\nformula = 'x / top'\ninputs = ['input', 'max']\nnames = ['x', 'top']\n";
    let text = input(&[6, 5], &[4, 2], "halo_only", "") + steps + "[output]\npath = 'ratio.zarr'\n";
    match run(&text, &folder.0) {
        Ok(report) => {
            let want: Vec<f64> = numbers(30).iter().map(|v| v / 29.0).collect();
            assert_eq!(read(&folder.path("ratio.zarr"), None).values::<f64>(), want);
            assert!(report.source_chunk_reads >= 12, "{}", report.source_chunk_reads);
        }
        Err(error) => panic!("{error}\n{text}"),
    }
}

#[test]
fn each_reader_has_one_program() {
    let folder = Folder::new("command-pids");
    let text = input(&[40, 4], &[1, 4], "pid", "") + "[output]\npath = 'out.zarr'\n[engine]\nworkers = 2\n";
    let planned = plan(&text, &folder.0).expect("a plan");
    assert!(planned.to_string().contains("children 1.00GiB each reader, beside the limit"), "{planned}");
    run(&text, &folder.0).expect("a run");
    let mut pids = read(&folder.path("out.zarr"), None).values::<f64>();
    pids.sort_by(f64::total_cmp);
    pids.dedup();
    assert!(!pids.is_empty() && pids.len() <= 2, "{pids:?}");
}

#[test]
fn programs_that_fail() {
    let folder = Folder::new("command-fails");
    for (function, more, words) in [
        ("dies", "", &["chunk [0, 0]", "exited with status 3", "something broke inside", "in a second, fresh child"][..]),
        ("error", "", &["chunk [0, 0] (region [[0, 2], [0, 3]])", "ZeroDivisionError"]),
        ("wrong_shape", "", &["shape [1, 10], expected [2, 3]"]),
        ("wrong_dtype", "", &["expected \"<f8\" (float64)"]),
        // Noticed when the next chunk is asked for.
        ("too_much", "", &["tail"]),
        ("hangs", "timeout = '300ms'\n", &["gave no answer within 300ms"]),
        ("not_ready", "", &["refused to start: no licence"]),
    ] {
        let text = input(&[4, 3], &[2, 3], function, more) + "[output]\npath = 'out.zarr'\n[engine]\nworkers = 1\n";
        let error = run(&text, &folder.0).expect_err(function);
        assert!(words.iter().all(|word| error.contains(word)), "{function}: {error}");
        assert!(!folder.path("out.zarr").exists());
    }
    let text = input(&[2, 3], &[2, 3], "halo_only", "").replace(&child().display().to_string(), "/nowhere/reader");
    let error = run(&(text + "[output]\npath = 'out.zarr'\n"), &folder.0).expect_err("no program");
    assert!(error.contains("cannot start `/nowhere/reader`"), "{error}");
}

#[test]
fn a_program_that_dies_once_is_replaced() {
    let folder = Folder::new("command-once");
    let marker = folder.path("marker").display().to_string();
    let text = input(&[4], &[2], "dies_once", "").replace("params = {", &format!("params = {{ marker = {marker:?},"));
    run(&(text + "[output]\npath = 'out.zarr'\n"), &folder.0).expect("a run");
    assert_eq!(read(&folder.path("out.zarr"), None).values::<f64>(), numbers(4));
}

/// A stopped job does not wait for a program's answer.
#[test]
fn stopping_ends_the_wait() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let folder = Folder::new("command-stop");
    let text = input(&[4], &[2], "hangs", "") + "[output]\npath = 'out.zarr'\n";
    let plan = Arc::new(plan(&text, &folder.0).expect("a plan"));
    let prepared = halostream::engine::publish::prepare(&plan, false).expect("a place");
    let halostream::engine::publish::Prepared::Ready { staging, sinks, done, .. } = prepared else {
        panic!("nothing stands there")
    };
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        flag.store(true, Ordering::SeqCst);
    });
    let since = Instant::now();
    let ended = halostream::engine::resume(plan, sinks, done, Arc::new(halostream::engine::Silent), stop);
    staging.abandon();
    stopper.join().expect("no panic");
    assert!(matches!(ended, Err(halostream::engine::JobError::Stopped)), "{ended:?}");
    // The program's own time would be ten minutes.
    assert!(since.elapsed() < Duration::from_secs(60));
}
