//! Every wait is measured (I8): the numbers of the stages add up, and the report names the bottleneck.

use std::sync::Arc;
use std::time::Duration;

use halostream::config::CodecName;
use halostream::engine::report::StageReport;

use crate::common::{Folder, Random, write};
use crate::kit::{Hook, Window, count_reads, job, plan_of, quiet, run_with, shared, whole_numbers};

fn slow() -> Hook {
    Arc::new(|_, _| {
        std::thread::sleep(Duration::from_millis(3));
        Ok(())
    })
}

#[test]
fn numbers_add_up_and_the_slow_stage_is_named() {
    let _shared = shared();
    for (slowest, source, operator, sink) in
        [("reader", slow(), quiet(), quiet()), ("compute", quiet(), slow(), quiet()), ("writer", quiet(), quiet(), slow())]
    {
        let folder = Folder::new("report");
        let x = whole_numbers(&mut Random(1), &[40, 30]);
        write(&folder.path("x.zarr"), &x, &[5, 6], None, CodecName::None);
        let text = "[input]\npath = \"x.zarr\"\n[[step]]\nop = \"identity\"\nname = \"s0\"\n[output]\npath = \"o.zarr\"\n\
                    chunks = [8, 10]\n[engine]\nblock = [4, 10]\nworkers = 1\npark = \"none\"\n";
        let mut plan = plan_of(&job(text, &folder.0, &[Window::with(&[(1, 1), (0, 2)], operator)]));
        let blocks = plan.blocks_total();
        let predicted = plan.predicted_peak_bytes();
        count_reads(&mut plan, source);
        let (report, sinks) = run_with(plan, sink).expect("a good end");
        let stage = |name: &str| -> &StageReport { report.stages.iter().find(|s| s.name == name).expect("all five stages") };
        let (reader, halo, compute, trim, writer) =
            (stage("reader"), stage("halo"), stage("compute"), stage("trim"), stage("writer"));
        assert_eq!((reader.chunks, report.source_chunk_reads, report.source_chunks), (40, 40, 40));
        assert_eq!(reader.bytes_in, report.bytes_read);
        assert_eq!(reader.bytes_out, 40 * 30 * 8, "each source cell is kept once");
        assert_eq!((blocks, halo.chunks, compute.chunks, trim.chunks, report.blocks_computed), (30, 30, 30, 30, 30));
        assert_eq!(halo.bytes_out, compute.bytes_in);
        assert_eq!(compute.bytes_out, trim.bytes_in);
        assert_eq!(trim.bytes_out, 40 * 30 * 8);
        assert_eq!((writer.chunks, report.objects_written), (15, 15));
        assert_eq!((writer.bytes_in, writer.bytes_out), (40 * 30 * 8, report.bytes_written));
        assert_eq!(report.predicted_peak_bytes, predicted);
        assert_eq!(report.bottleneck, slowest, "{:?}", report.stages);
        for s in &report.stages {
            let total = s.busy_s + s.starved_s + s.blocked_s;
            let most = report.wall_s * (s.threads + 1) as f64 + 0.05;
            assert!(total <= most, "{}: {total} s of {most} s", s.name);
        }
        assert_eq!(sinks[0].array().shape, [40, 30]);
    }
}
