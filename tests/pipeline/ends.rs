//! No silent end (I7): a channel that closes without `End` is a fault, counts are checked against the plan.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use halostream::array::chunk::Hop;
use halostream::engine::stage::{Clock, Halt, Inlet, Outlet};
use halostream::engine::supervise::{Body, Ending, StageSpec, supervise};
use halostream::plan::Plan;
use halostream::writer::Sink;

use crate::common::{Array, Folder, write};
use crate::kit::{Window, job, memory_sinks, plan_of, quiet, shared, start};
use halostream::config::CodecName;

fn inlet(rx: flume::Receiver<Hop<u32>>, senders: usize) -> Inlet<u32> {
    Inlet::new(rx, senders, Arc::new(Clock::default()), Arc::new(AtomicBool::new(false)), "halo")
}

#[test]
fn a_channel_that_closes_without_an_end_is_a_fault() {
    let (tx, rx) = flume::bounded(4);
    tx.send(Hop::Items(vec![7])).expect("room");
    drop(tx);
    let mut inlet = inlet(rx, 1);
    assert_eq!(inlet.receive(), Ok(Some(7)));
    let Err(Halt::Orphaned(fault)) = inlet.receive() else { panic!("an end without a word is a fault") };
    assert_eq!(fault.to_string(), "halo: after 1 items: the stage before it ended without saying so");
}

#[test]
fn every_sender_has_to_say_that_it_is_done() {
    let (tx, rx) = flume::bounded(4);
    let other = tx.clone();
    tx.send(Hop::End { count: 0 }).expect("room");
    drop((tx, other));
    assert!(matches!(inlet(rx, 2).receive(), Err(Halt::Orphaned(_))));
}

#[test]
fn announced_and_received_counts_are_both_kept() {
    let (tx, rx) = flume::bounded(8);
    for hop in [Hop::Items(vec![1]), Hop::Items(vec![2]), Hop::End { count: 3 }] {
        tx.send(hop).expect("room");
    }
    let mut short = inlet(rx, 1);
    while short.receive().expect("no fault").is_some() {}
    assert_eq!((short.announced(), short.received), (3, 2));

    let (tx, rx) = flume::bounded(8);
    let mut outlet = Outlet::new(tx, Arc::new(Clock::default()), Arc::new(AtomicBool::new(false)));
    outlet.send(5).expect("room");
    outlet.end(2).expect("room");
    let mut whole = inlet(rx, 2);
    while whole.receive().expect("no fault").is_some() {}
    assert_eq!((whole.announced(), whole.received), (1, 1));
}

/// A plan that promises more than the stages do must not end well, whichever count is wrong.
#[test]
fn counts_that_are_not_the_plans_fail_the_job_before_its_sinks_finish() {
    let _shared = shared();
    let wrong: [(&str, fn(&mut Plan)); 2] = [
        ("reader: phase 1: ended after 6 items, the plan has 7", |p| p.phases[0].frontier.reads += 1),
        ("writer: phase 1: ended after 6 items, the plan has 7", |p| p.outputs[0].layout.shape[0] += 1),
    ];
    for (message, spoil) in wrong {
        let folder = Folder::new("counts");
        write(&folder.path("x.zarr"), &Array::new::<f64>(&[12], &[1.0; 12]), &[2], None, CodecName::None);
        let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"identity\"\nname = \"s0\"\n[output]\npath = \"o.zarr\"\n[engine]\nblock = [2]\n";
        let mut plan = plan_of(&job(text, &folder.0, &[Window::new(&[(0, 0)])]));
        let sinks = memory_sinks(&plan, &quiet());
        spoil(&mut plan);
        let error = start(Arc::new(plan), sinks.iter().map(|s| s.clone() as Arc<dyn Sink>).collect()).end().expect("an end");
        let error = error.expect_err("a wrong count").to_string();
        assert!(error.starts_with(message), "{error}");
        assert!(!sinks[0].finished.load(Ordering::SeqCst));
    }
}

/// Threads that end at once, all together: the end of the last one must reach its stage every time.
#[test]
fn no_thread_ends_unheard() {
    let _shared = shared();
    let (tx, rx) = flume::bounded(1);
    std::thread::spawn(move || {
        for _ in 0..3000 {
            let stage = |name| StageSpec { name, threads: (0..2).map(|_| Box::new(|| Ok(1u64)) as Body).collect() };
            let stages = ["reader", "halo", "compute", "trim", "writer"].map(stage).into();
            let ending = supervise(stages, Arc::new(AtomicBool::new(false)), Box::new(|| ()));
            let Ending::Done(passed) = ending else { panic!("{ending:?}") };
            assert!(passed.len() == 5 && passed.iter().all(|p| p.1 == 2), "{passed:?}");
        }
        let _ = tx.send(());
    });
    assert_eq!(rx.recv_timeout(Duration::from_secs(60)), Ok(()), "a stage waits for a thread that has ended");
}
