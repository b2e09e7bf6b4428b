//! Backpressure by exact count: with an end stalled, the reader has read what channels, hands, window and reservation
//! allow, and not one chunk more (I2, I8). Small chunks travel together: of them there may be as many as have leases.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use halostream::plan::Plan;
use halostream::writer::Sink;

use crate::common::{Array, Folder, write};
use crate::kit::{
    Gate, Hook, Opens, Window, count_reads, job, memory_sinks, naive_window, plan_of, quiet, settled, shared, start,
};
use halostream::array::Rule;
use halostream::config::CodecName;

/// Elements of a chunk: a few, or so many that each chunk is a message of its own.
const SMALL: u64 = 16;
const LARGE: u64 = 1 << 17;
const CHUNKS: u64 = 60;
const PLENTY: u64 = 1 << 26;

/// 60 blocks of one chunk each, one output chunk each. With `depth` above 0 block b needs chunks b - 1, b, b + 1.
fn plan(folder: &Folder, chunk: u64, depth: u64, workers: usize, hook: Hook) -> (Plan, Array) {
    let x = Array::new::<f64>(&[chunk * CHUNKS], &(0..chunk * CHUNKS).map(|v| v as f64).collect::<Vec<_>>());
    write(&folder.path("x.zarr"), &x, &[chunk], None, CodecName::None);
    let text = format!(
        "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"identity\"\nname = \"s0\"\n[output]\npath = \"o.zarr\"\ncodec = \"none\"\n\
         [engine]\nblock = [{chunk}]\nworkers = {workers}\npark = \"none\"\nmemory = \"64MiB\"\n"
    );
    let want = naive_window(&x, &[(depth, depth)], &vec![[Rule::Nearest; 2]], &[]);
    (plan_of(&job(&text, &folder.0, &[Window::with(&[(depth, depth)], hook)])), want)
}

/// Chunks read when nothing moves any more. `stuck` blocks are beyond the halo stage's outlet or in its hand.
///
/// - With the window shut (`stuck` = window) the halo stage has gathered the chunks of the next block before it waits; with
///   its outlet full it has not.
/// - Readers: a chunk in each hand, as many in their channel; of small ones a message of them.
/// - Several readers finish out of order: while one is late the halo stage parks what the others bring, as far as leases go.
///   So the count is exact for one reader, and has a bound for more.
/// - Every chunk read or being read has a lease; a chunk read is held until its last block let go of it.
fn expected(plan: &Plan, chunk: u64, depth: u64, stuck: u64, computed: u64) -> RangeInclusive<u64> {
    let phase = &plan.phases[0];
    let c = phase.concurrency;
    let is_shut = stuck == c.window as u64;
    let blocks = if is_shut { stuck + 1 } else { stuck };
    let ahead = u64::from(depth > 0);
    let gathered = blocks + ahead;
    // Without halo a block is a view of its chunk, which goes when the block is computed; with halo it is a copy, and
    // of chunk c a margin is left, elsewhere, when block c was built.
    let gone = if depth > 0 { stuck } else { computed };
    let leases = phase.reservation.source / (chunk * 8);
    let most = (gone + leases).min(CHUNKS);
    let in_order = (gathered + 2 * c.readers as u64).min(most);
    in_order..=if c.readers == 1 && chunk == LARGE { in_order } else { most }
}

#[test]
fn a_stalled_sink_stops_the_reader_at_an_exact_count() {
    let _shared = shared();
    // (depth, workers, readers, window, chunks of source reserved)
    let cases = [
        (0, 1, 1, 5, None),
        (0, 2, 2, 8, None),
        (1, 1, 1, 5, None),
        (1, 2, 3, 4, Some(40)),
        (0, 1, 1, 50, Some(40)),
        (0, 1, 1, 5, Some(1)),
        (1, 1, 1, 3, Some(3)),
    ];
    for (chunk, (depth, workers, readers, window, reserved)) in
        [LARGE, SMALL].into_iter().flat_map(|chunk| cases.iter().map(move |case| (chunk, *case)))
    {
        let folder = Folder::new("stalled-sink");
        let gate = Arc::new(Gate::default());
        let _opens = Opens(gate.clone());
        let (mut plan, want) = plan(&folder, chunk, depth, workers, quiet());
        let phase = &mut plan.phases[0];
        phase.concurrency.readers = readers;
        phase.concurrency.window = window;
        phase.reservation.compute = PLENTY;
        phase.reservation.blocks = PLENTY;
        phase.reservation.decode = PLENTY;
        if let Some(chunks) = reserved {
            phase.reservation.source = chunks * chunk * 8;
        }
        let c = phase.concurrency;
        // In `put`, before it, with the assembler, before it; all of these are computed. So are those in the workers' hands,
        // who trim them; the queue's and the halo stage's are not.
        let after = (2 * c.encoders + 1 + 1 + c.workers) as u64;
        let stuck = (after + c.queue as u64 + 1).min(c.window as u64);
        let expected = expected(&plan, chunk, depth, stuck, after.min(stuck));
        let limit = plan.phases[0].reservation.total();
        let sources = count_reads(&mut plan, quiet());
        let shut = gate.clone();
        let sinks = memory_sinks(
            &plan,
            &(Arc::new(move |_, _: &_| {
                shut.pass();
                Ok(())
            }) as Hook),
        );
        let running = start(Arc::new(plan), sinks.iter().map(|s| s.clone() as Arc<dyn Sink>).collect());
        let read = settled(|| sources[0].total());
        assert!(expected.contains(&read), "{read} of {expected:?}: {chunk} elements, depth {depth}, {c:?}, {reserved:?}");
        let leased = running.leased.load(Ordering::SeqCst);
        assert!(leased > 0 && leased <= limit, "{leased} of {limit}");
        gate.open();
        let report = running.end().expect("an end").expect("a good end");
        assert_eq!((report.source_chunk_reads, sources[0].most()), (CHUNKS, 1));
        assert_eq!(sinks[0].array(), want);
    }
}

#[test]
fn a_stalled_operator_stops_the_reader_at_an_exact_count() {
    let _shared = shared();
    let cases = [(0, 1, None), (0, 1, Some(40)), (0, 3, Some(40)), (1, 2, Some(40)), (1, 1, None)];
    for (chunk, (depth, workers, reserved)) in
        [LARGE, SMALL].into_iter().flat_map(|chunk| cases.iter().map(move |case| (chunk, *case)))
    {
        let folder = Folder::new("stalled-operator");
        let gate = Arc::new(Gate::default());
        let _opens = Opens(gate.clone());
        let shut = gate.clone();
        let (mut plan, want) = plan(
            &folder,
            chunk,
            depth,
            workers,
            Arc::new(move |_, _| {
                shut.pass();
                Ok(())
            }),
        );
        if let Some(chunks) = reserved {
            plan.phases[0].reservation.source = chunks * chunk * 8;
        }
        let c = plan.phases[0].concurrency;
        let stuck = ((c.workers + c.queue + 1) as u64).min(c.window as u64);
        let expected = expected(&plan, chunk, depth, stuck, 0);
        let sources = count_reads(&mut plan, quiet());
        let sinks = memory_sinks(&plan, &quiet());
        let running = start(Arc::new(plan), sinks.iter().map(|s| s.clone() as Arc<dyn Sink>).collect());
        let read = settled(|| sources[0].total());
        assert!(expected.contains(&read), "{read} of {expected:?}: {chunk} elements, depth {depth}, {c:?}, {reserved:?}");
        assert_eq!(sinks[0].puts.load(Ordering::SeqCst), 0);
        gate.open();
        running.end().expect("an end").expect("a good end");
        assert_eq!(sinks[0].array(), want);
    }
}
