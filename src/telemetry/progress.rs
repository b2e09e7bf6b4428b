//! The progress of a run: a bar on a terminal, a line now and then elsewhere.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::config::units::{format_bytes, format_duration};
use crate::engine::{Observer, Progress};

/// Lines without a terminal come at most this often ...
const LINE_EVERY: Duration = Duration::from_secs(10);
/// ... but the first one soon: it says that the job is under way.
const FIRST_LINE: Duration = Duration::from_secs(2);

/// Shows blocks done, bytes per second, time left and memory in use.
pub struct ProgressView {
    bar: Option<ProgressBar>,
    since: Instant,
    next_line: Mutex<Instant>,
}

impl ProgressView {
    pub fn new() -> Self {
        let bar = super::can_draw().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template("{bar:32} {pos}/{len} blocks  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, since: Instant::now(), next_line: Mutex::new(Instant::now() + FIRST_LINE) }
    }

    /// Clears the bar, so that the result line stands alone.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn text(&self, now: &Progress) -> String {
        let elapsed = self.since.elapsed();
        let rate = (now.bytes_read + now.bytes_written) as f64 / elapsed.as_secs_f64().max(1e-3);
        let left = match (now.blocks_done, now.blocks_total.saturating_sub(now.blocks_done)) {
            (0, _) => "?".to_owned(),
            (done, left) => format_duration(Duration::from_secs_f64((elapsed.as_secs_f64() * left as f64 / done as f64).round())),
        };
        let phase = if now.phases > 1 { format!("phase {}/{}  ", now.phase + 1, now.phases) } else { String::new() };
        format!("{phase}{}/s  {left} left  memory {}", format_bytes(rate as u64), format_bytes(now.leased_bytes))
    }
}

impl Default for ProgressView {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for ProgressView {
    fn progress(&self, now: &Progress) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(now.blocks_total);
                bar.set_position(now.blocks_done);
                bar.set_message(self.text(now));
            }
            None => {
                let mut next = self.next_line.lock().unwrap_or_else(PoisonError::into_inner);
                if Instant::now() >= *next {
                    *next = Instant::now() + LINE_EVERY;
                    let text = format!("{}/{} blocks  {}", now.blocks_done, now.blocks_total, self.text(now));
                    super::tell(tracing::Level::INFO, text);
                }
            }
        }
    }
}
