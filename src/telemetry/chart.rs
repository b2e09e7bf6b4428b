//! Lines over time as SVG, without a script.

use std::fmt::Write;

use super::page::escaped;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 170.0;
/// Room for the labels left of and below the lines.
const LEFT: f64 = 78.0;
const BELOW: f64 = 20.0;
const ABOVE: f64 = 8.0;
const RIGHT: f64 = 10.0;

/// One line: x in seconds.
pub struct Series<'a> {
    pub name: &'a str,
    /// A class of the page's style sheet.
    pub class: &'a str,
    pub points: Vec<(f64, f64)>,
}

pub struct Chart<'a> {
    pub title: &'a str,
    pub series: Vec<Series<'a>>,
    /// A level, with its name.
    pub limit: Option<(f64, &'a str)>,
    /// Where something changed.
    pub marks: Vec<(f64, String)>,
    pub seconds: f64,
    pub label: fn(f64) -> String,
}

impl Chart<'_> {
    pub fn svg(&self) -> String {
        let highest = self.series.iter().flat_map(|s| &s.points).map(|p| p.1).chain(self.limit.map(|l| l.0)).fold(0.0, f64::max);
        let top = if highest > 0.0 { highest * 1.05 } else { 1.0 };
        let seconds = self.seconds.max(1e-3);
        let x = |at: f64| LEFT + at / seconds * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| ABOVE + (1.0 - value / top) * (HEIGHT - ABOVE - BELOW);
        let mut out = String::new();
        let title = escaped(self.title);
        let _ = write!(out, "<figure><figcaption>{title}");
        for series in &self.series {
            let _ = write!(out, " <span class=\"key {}\">{}</span>", series.class, escaped(series.name));
        }
        let _ = write!(out, "</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">");
        for step in 0..=2 {
            let value = highest * f64::from(step) / 2.0;
            let at = y(value);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                escaped(&(self.label)(value))
            );
        }
        for step in 0..=4 {
            let at = seconds * f64::from(step) / 4.0;
            let anchor = if step == 4 { "end" } else { "middle" };
            let digits = digits(seconds);
            let _ =
                write!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{at:.digits$} s</text>", x(at), HEIGHT - 4.0);
        }
        for (at, name) in &self.marks {
            let at = x(*at);
            let (bottom, name) = (HEIGHT - BELOW, escaped(name));
            let _ = write!(
                out,
                "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{ABOVE}\" y2=\"{bottom}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
                at + 3.0,
                ABOVE + 10.0
            );
        }
        if let Some((level, name)) = self.limit {
            let at = y(level);
            let _ = write!(
                out,
                "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"><title>{}</title></line>",
                WIDTH - RIGHT,
                escaped(name)
            );
        }
        for series in &self.series {
            let points: Vec<String> = series.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
            let _ = write!(
                out,
                "<polyline class=\"{}\" points=\"{}\"><title>{}</title></polyline>",
                series.class,
                points.join(" "),
                escaped(series.name)
            );
        }
        out.push_str("</svg></figure>\n");
        out
    }
}

/// Decimals that tell quarters of so many seconds apart.
fn digits(seconds: f64) -> usize {
    match seconds {
        s if s < 4.0 => 2,
        s if s < 40.0 => 1,
        _ => 0,
    }
}
