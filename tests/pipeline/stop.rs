//! Stop: the flag ends a job with what is in flight, whatever its stages wait for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use halostream::config::CodecName;
use halostream::engine::JobError;
use halostream::writer::Sink;

use crate::common::{Array, Folder, write};
use crate::kit::{Hook, Window, alone, count_reads, expect_no_threads, job, memory_sinks, plan_of, quiet, settled, start};

fn slow() -> Hook {
    Arc::new(|_, _| {
        std::thread::sleep(Duration::from_millis(30));
        Ok(())
    })
}

/// Never returns unless the job is stopped.
fn hung() -> Hook {
    Arc::new(|_, stop| {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })
}

#[test]
fn a_job_stops_whatever_it_waits_for() {
    let _alone = alone();
    // Slow source: everyone starves. Slow sink: channels are full. Hung operator: leases and the window are out.
    for (name, source, operator, sink) in
        [("source", slow(), quiet(), quiet()), ("operator", quiet(), hung(), quiet()), ("sink", quiet(), quiet(), slow())]
    {
        for memory in ["\"1MiB\"", "14000"] {
            let folder = Folder::new("stop");
            write(&folder.path("x.zarr"), &Array::new::<f64>(&[3200], &[1.0; 3200]), &[16], None, CodecName::None);
            let text = format!(
                "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"identity\"\nname = \"s0\"\n[output]\npath = \"o.zarr\"\n\
                 codec = \"none\"\n[engine]\nblock = [16]\nworkers = 2\nmemory = {memory}\n"
            );
            let mut plan = plan_of(&job(&text, &folder.0, &[Window::with(&[(1, 1)], operator.clone())]));
            let sources = count_reads(&mut plan, source.clone());
            let sinks = memory_sinks(&plan, &sink);
            let running = start(Arc::new(plan), sinks.iter().map(|s| s.clone() as Arc<dyn Sink>).collect());
            if name == "operator" {
                settled(|| sources[0].total());
            } else {
                std::thread::sleep(Duration::from_millis(200));
            }
            let before = sinks[0].puts.load(Ordering::SeqCst);
            running.stop.store(true, Ordering::SeqCst);
            let ended = running.end().expect("an end");
            assert!(matches!(ended, Err(JobError::Stopped)), "slow {name}: {:?}", ended.err());
            // 200 chunks in all; a window and two channels of them may have been under way.
            let more = sinks[0].puts.load(Ordering::SeqCst) - before;
            assert!(more < 60, "slow {name}, {memory}: {more} chunks were written after the stop");
            assert!(!sinks[0].finished.load(Ordering::SeqCst), "a stopped job is not finished");
            expect_no_threads();
        }
    }
}
