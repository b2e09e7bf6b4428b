//! `run --report FILE.html`: the report as one page that needs nothing else, to look at or to send to somebody.

use std::fmt::Write;

use super::chart::{Chart, Series};
use super::profile::Sample;
use crate::config::units::format_bytes;
use crate::engine::report::{RunReport, StageReport};
use crate::plan::Plan;

/// The limit is drawn when it is not so far above what was used that nothing else could be told apart.
const LIMIT_IN_SIGHT: f64 = 4.0;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --soft: #757575; --a: #3f78c9; --b: #c8412f; --c: #2a8f5b; --d: #b7791f; --e: #8b5fbf; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1rem 1.5rem 3rem; max-width: 58rem; }
h1 { font-size: 1.25rem; overflow-wrap: anywhere; } h2 { font-size: 1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th, figcaption, .soft { color: var(--soft); font-weight: 600; font-size: .87rem; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.b { width: 32%; }
figure { margin: 1.2rem 0; } svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .grid { stroke: var(--line); }
.mark { stroke: var(--soft); stroke-dasharray: 2 3; } .limit { stroke: var(--b); stroke-dasharray: 6 4; }
.a { stroke: var(--a); } .b2 { stroke: var(--b); } .c { stroke: var(--c); } .d { stroke: var(--d); } .e { stroke: var(--e); }
.key::before { content: ''; display: inline-block; width: .9em; height: .25em; margin: 0 .3em 0 .8em; vertical-align: middle; }
.key.a::before { background: var(--a); } .key.b2::before { background: var(--b); } .key.c::before { background: var(--c); }
.key.d::before { background: var(--d); } .key.e::before { background: var(--e); }
.share { display: flex; height: .7rem; margin-top: .4rem; border-radius: 3px; overflow: hidden; background: var(--line); }
.busy { background: var(--a); } .blocked { background: var(--d); } .starved { background: none; }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 3px; padding: .6rem .8rem; font-size: .85rem; }
";

/// Text as it is, whatever it holds.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// The whole page. `job` is what messages call it, `result` its last line.
pub fn page(job: &str, result: &str, plan: &Plan, report: &RunReport, samples: &[Sample]) -> String {
    let mut out = String::new();
    let title = escaped(job);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n<p>{}</p>\n",
        escaped(result)
    );
    numbers(&mut out, report);
    out.push_str("<h2>Over time</h2>\n");
    match samples.len() {
        0 | 1 => out.push_str("<p>The run was over before it could be looked at twice.</p>\n"),
        _ => charts(&mut out, report, samples),
    }
    stages(&mut out, &report.stages);
    let _ = write!(out, "<h2>Plan</h2>\n<pre>{}</pre>\n", escaped(&plan.to_string()));
    let resolved = serde_json::to_string_pretty(&plan.resolved).unwrap_or_default();
    let _ = write!(out, "<details><summary>The job, every key</summary><pre>{}</pre></details>\n</html>", escaped(&resolved));
    out
}

fn numbers(out: &mut String, report: &RunReport) {
    let bytes = format_bytes;
    let partition = report.partition.as_ref().map(|p| {
        let whole = if p.is_published { "all have their names" } else { "outputs wait for the others" };
        ("partition", format!("{} of 0 to {}; {} complete, {whole}", p.index, p.count - 1, p.complete))
    });
    let rows = [
        ("time", format!("{:.2} s", report.wall_s)),
        (
            "read",
            format!(
                "{} in {} chunks ({} needed, {} missing)",
                bytes(report.bytes_read),
                report.source_chunk_reads,
                report.source_chunks,
                report.filled_chunks
            ),
        ),
        ("written", format!("{} in {} objects", bytes(report.bytes_written), report.objects_written)),
        (
            "blocks",
            format!(
                "{} computed, {} not needed again; {} in flight at most",
                report.blocks_computed, report.blocks_resumed, report.blocks_in_flight_max
            ),
        ),
        (
            "memory",
            format!(
                "{} at most, limit {}, {} planned, {} before the first chunk",
                bytes(report.peak_rss_bytes),
                bytes(report.memory_limit_bytes),
                bytes(report.predicted_peak_bytes),
                bytes(report.baseline_rss_bytes)
            ),
        ),
        ("bottleneck", report.bottleneck.clone()),
        ("arithmetic", report.arithmetic.to_owned()),
        ("job hash", report.job_hash.clone()),
        ("version", report.version.to_owned()),
    ];
    out.push_str("<table>\n");
    for (name, value) in rows.into_iter().chain(partition) {
        let _ = writeln!(out, "<tr><th>{name}</th><td>{}</td></tr>", escaped(&value));
    }
    out.push_str("</table>\n");
}

fn charts(out: &mut String, report: &RunReport, samples: &[Sample]) {
    let seconds = samples.last().map_or(0.0, |s| s.at.as_secs_f64());
    let over = |value: &dyn Fn(&Sample) -> f64| samples.iter().map(|s| (s.at.as_secs_f64(), value(s))).collect::<Vec<_>>();
    // What grew between two looks, by the time between them.
    let rate = |value: &dyn Fn(&Sample) -> f64| {
        let step = |pair: &[Sample]| {
            let time = (pair[1].at - pair[0].at).as_secs_f64().max(1e-6);
            (pair[1].at.as_secs_f64(), (value(&pair[1]) - value(&pair[0])).max(0.0) / time)
        };
        samples.windows(2).map(step).collect::<Vec<_>>()
    };
    let marks: Vec<(f64, String)> = samples
        .windows(2)
        .filter(|pair| pair[0].now.phase != pair[1].now.phase)
        .map(|pair| (pair[1].at.as_secs_f64(), format!("phase {}", pair[1].now.phase + 1)))
        .take(20)
        .collect();
    let resident = over(&|s| s.resident_bytes as f64);
    let most = resident.iter().map(|p| p.1).fold(1.0, f64::max);
    let limit = report.memory_limit_bytes as f64;
    let memory = Chart {
        title: "Memory",
        series: vec![
            Series { name: "resident", class: "a", points: resident },
            Series { name: "chunks", class: "c", points: over(&|s| s.now.leased_bytes as f64) },
        ],
        limit: (limit < LIMIT_IN_SIGHT * most).then_some((limit, "engine.memory")),
        marks: marks.clone(),
        seconds,
        label: |v| format_bytes(v as u64),
    };
    let bytes = Chart {
        title: "Bytes a second, as stored",
        series: vec![
            Series { name: "read", class: "a", points: rate(&|s| s.now.bytes_read as f64) },
            Series { name: "written", class: "b2", points: rate(&|s| s.now.bytes_written as f64) },
        ],
        limit: None,
        marks: marks.clone(),
        seconds,
        label: |v| format!("{}/s", format_bytes(v as u64)),
    };
    let classes = ["a", "d", "c", "e", "b2"];
    let threads = Chart {
        title: "Busy threads",
        series: (report.stages.iter().zip(classes).enumerate())
            .map(|(at, (stage, class))| Series { name: stage.name, class, points: rate(&|s| s.now.busy[at].as_secs_f64()) })
            .collect(),
        limit: None,
        marks,
        seconds,
        label: |v| format!("{v:.1}"),
    };
    [memory, bytes, threads].iter().for_each(|chart| out.push_str(&chart.svg()));
}

fn stages(out: &mut String, stages: &[StageReport]) {
    out.push_str(
        "<h2>Stages</h2>\n<p class=\"soft\"><span class=\"key a\">working</span><span class=\"key d\">waiting for room further down</span>, \
         rest: waiting for work</p>\n<table>\n<tr><th>stage</th><th class=\"n\">threads</th><th>their time</th><th class=\"n\">working</th>\
         <th class=\"n\">blocked</th><th class=\"n\">starved</th><th class=\"n\">items</th><th class=\"n\">in</th><th class=\"n\">out</th></tr>\n",
    );
    for stage in stages {
        let StageReport { name, threads, busy_s, starved_s, blocked_s, chunks, bytes_in, bytes_out } = stage;
        let whole = (busy_s + starved_s + blocked_s).max(1e-9);
        let (busy, blocked) = (100.0 * busy_s / whole, 100.0 * blocked_s / whole);
        let _ = writeln!(
            out,
            "<tr><td>{name}</td><td class=\"n\">{threads}</td><td class=\"b\"><div class=\"share\"><div class=\"busy\" style=\"width:{busy:.1}%\"></div>\
             <div class=\"blocked\" style=\"width:{blocked:.1}%\"></div></div></td><td class=\"n\">{busy_s:.2} s</td><td class=\"n\">{blocked_s:.2} s</td>\
             <td class=\"n\">{starved_s:.2} s</td><td class=\"n\">{chunks}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            format_bytes(*bytes_in),
            format_bytes(*bytes_out)
        );
    }
    out.push_str("</table>\n");
}
