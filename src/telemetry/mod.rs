//! Logging set-up and progress: what a run says while it runs; its profile, and a page of both for people.

pub mod chart;
pub mod page;
pub mod profile;
pub mod progress;
pub mod trace;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::EnvFilter;

/// `--log-format`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Human,
    Json,
}

static IS_JSON: AtomicBool = AtomicBool::new(false);

/// One line on stderr that no log level hides: an error, progress. As JSON when log lines are, so that all of stderr can
/// be parsed.
pub fn tell(level: tracing::Level, text: impl std::fmt::Display) {
    use std::io::Write;
    let mut to = std::io::stderr().lock();
    let _ = if IS_JSON.load(Ordering::Relaxed) {
        let fields = serde_json::json!({ "message": text.to_string() });
        writeln!(to, "{}", serde_json::json!({ "level": level.as_str(), "fields": fields }))
    } else if level == tracing::Level::ERROR {
        writeln!(to, "halostream: {text}")
    } else {
        writeln!(to, "{text}")
    };
}

/// Whether a progress bar would be seen, and disturb nobody.
fn can_draw() -> bool {
    std::io::stderr().is_terminal() && !IS_JSON.load(Ordering::Relaxed)
}

/// Starts logging on stderr. `HALOSTREAM_LOG` picks levels as in `info,halostream::engine=debug`; without it
/// `level` and above.
pub fn start_logging(format: LogFormat, level: &str) {
    IS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    let filter = EnvFilter::try_from_env("HALOSTREAM_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Json => builder.json().try_init(),
        LogFormat::Human => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
    };
    if let Err(error) = started {
        eprintln!("halostream: logging did not start: {error}");
    }
}
