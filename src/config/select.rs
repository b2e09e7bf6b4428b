//! `select = "0:10, :, 5"`: numpy's basic slices as text, and what they take from an array.

use super::Select;

/// Entries of a `select` text. At most one `...`; anything that numpy would index with an array is refused.
pub fn parse(text: &str) -> Result<Vec<Select>, String> {
    let mut entries: Vec<&str> = text.split(',').map(str::trim).collect();
    // Python's own tuples may end in a comma.
    if entries.len() > 1 && entries.last() == Some(&"") {
        entries.pop();
    }
    let list = entries.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    if list.iter().filter(|s| **s == Select::Ellipsis).count() > 1 {
        return Err("\"...\" can stand only once".to_owned());
    }
    Ok(list)
}

fn entry(text: &str) -> Result<Select, String> {
    let wrong = |why: String| format!("{why}; write one entry per axis, such as \"0:10, :, 5\"");
    let number = |part: &str| {
        let part = part.trim();
        if part.is_empty() {
            return Ok(None);
        }
        part.parse::<i64>().map(Some).map_err(|_| wrong(format!("\"{part}\" in \"{text}\" is not an integer")))
    };
    if text.is_empty() {
        return Err(wrong("an entry is empty".to_owned()));
    }
    if text == "..." {
        return Ok(Select::Ellipsis);
    }
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [index] => match number(index)? {
            Some(index) => Ok(Select::Index(index)),
            None => Err(wrong("an entry is empty".to_owned())),
        },
        [start, stop] => Ok(Select::Slice { start: number(start)?, stop: number(stop)?, step: 1 }),
        [start, stop, step] => match number(step)? {
            Some(0) => Err(wrong(format!("the step of \"{text}\" is 0"))),
            step => Ok(Select::Slice { start: number(start)?, stop: number(stop)?, step: step.unwrap_or(1) }),
        },
        _ => Err(wrong(format!("\"{text}\" has more than two colons"))),
    }
}

/// What is taken from one axis: `start`, `start + step`, ... (`len` of them, all inside the axis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisSelect {
    pub start: i64,
    pub step: i64,
    pub len: u64,
    /// The axis is not in the result (an integer).
    pub dropped: bool,
}

impl AxisSelect {
    pub fn whole(len: i64) -> Self {
        Self { start: 0, step: 1, len: len.unsigned_abs(), dropped: false }
    }

    /// The entries of the selection that lie in `from..to` of the axis, as a range; empty ones begin within the selection.
    pub fn within(&self, (from, to): (i64, i64)) -> (i64, i64) {
        let len = self.len as i64;
        // The first entry at or behind a place, going with the step.
        let (near, far) = if self.step > 0 { (from, to) } else { (to - 1, from - 1) };
        let reach = |place: i64| {
            let span = if self.step > 0 { place.saturating_sub(self.start) } else { self.start.saturating_sub(place) };
            let step = self.step.saturating_abs();
            (span.div_euclid(step) + i64::from(span.rem_euclid(step) > 0)).clamp(0, len)
        };
        (reach(near), reach(far))
    }
}

/// One entry per axis of an array of this shape, with numpy's rules: slices clamp, an integer outside is an error. Axes
/// left out are whole.
pub fn resolve(entries: &[Select], shape: &[u64]) -> Result<Vec<AxisSelect>, String> {
    let given = entries.iter().filter(|s| **s != Select::Ellipsis).count();
    if given > shape.len() {
        return Err(format!("select has {given} entries, the array has {} axes", shape.len()));
    }
    let mut out = Vec::with_capacity(shape.len());
    let missing = shape.len() - given;
    let push = |out: &mut Vec<AxisSelect>, entry: Option<Select>| -> Result<(), String> {
        let axis = out.len();
        let len = i64::try_from(shape[axis]).map_err(|_| format!("axis {axis} has an impossible length, {}", shape[axis]))?;
        out.push(match entry {
            Some(Select::Index(index)) => {
                let at = if index < 0 { index.checked_add(len).unwrap_or(-1) } else { index };
                if at < 0 || at >= len {
                    return Err(format!("select has index {index} for axis {axis}, which has length {len}"));
                }
                AxisSelect { start: at, step: 1, len: 1, dropped: true }
            }
            Some(Select::Slice { start, stop, step }) => slice(start, stop, step, len)?,
            Some(Select::Ellipsis) | None => AxisSelect::whole(len),
        });
        Ok(())
    };
    for entry in entries {
        match entry {
            Select::Ellipsis => (0..missing).try_for_each(|_| push(&mut out, None))?,
            entry => push(&mut out, Some(*entry))?,
        }
    }
    while out.len() < shape.len() {
        push(&mut out, None)?;
    }
    Ok(out)
}

/// Python's `slice.indices`.
fn slice(start: Option<i64>, stop: Option<i64>, step: i64, len: i64) -> Result<AxisSelect, String> {
    if step == 0 {
        return Err("the step of a slice is 0".to_owned());
    }
    let (lower, upper) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |value: i64| {
        let from_start = if value < 0 { value.saturating_add(len) } else { value };
        from_start.clamp(lower, upper)
    };
    let (first, last) = if step > 0 { (lower, upper) } else { (upper, lower) };
    let start = start.map_or(first, place);
    let stop = stop.map_or(last, place);
    let span = if step > 0 { stop - start } else { start - stop };
    if span <= 0 {
        return Ok(AxisSelect { start: 0, step, len: 0, dropped: false });
    }
    let count = (span.unsigned_abs() - 1) / step.unsigned_abs() + 1;
    Ok(AxisSelect { start, step, len: count, dropped: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str, shape: &[u64]) -> Vec<Vec<i64>> {
        let axes = resolve(&parse(text).unwrap(), shape).unwrap();
        axes.iter().map(|a| (0..a.len as i64).map(|k| a.start + k * a.step).collect()).collect()
    }

    #[test]
    fn slices_as_python_does() {
        // python3 -c "print([list(range(6))[s] for s in (slice(1, 4), ...)])"
        for (text, want) in [
            (":", vec![0, 1, 2, 3, 4, 5]),
            ("1:4", vec![1, 2, 3]),
            ("-2:", vec![4, 5]),
            (":-4", vec![0, 1]),
            ("::2", vec![0, 2, 4]),
            ("1::3", vec![1, 4]),
            ("::-1", vec![5, 4, 3, 2, 1, 0]),
            ("4:1:-2", vec![4, 2]),
            (":2:-1", vec![5, 4, 3]),
            ("-9:99", vec![0, 1, 2, 3, 4, 5]),
            ("99::-4", vec![5, 1]),
            ("4:2", vec![]),
            ("8:9", vec![]),
            (":-9:-1", vec![5, 4, 3, 2, 1, 0]),
            ("-9::-1", vec![]),
            ("::9223372036854775807", vec![0]),
            ("::-9223372036854775808", vec![5]),
            ("-9223372036854775808:9223372036854775807", vec![0, 1, 2, 3, 4, 5]),
        ] {
            assert_eq!(taken(text, &[6]), [want], "{text}");
        }
        assert_eq!(taken("::-1", &[0]), [Vec::<i64>::new()]);
    }

    #[test]
    fn every_slice_against_a_loop() {
        let ends = [None, Some(-7), Some(-5), Some(-1), Some(0), Some(1), Some(3), Some(5), Some(9)];
        for len in 0..6i64 {
            for start in ends {
                for stop in ends {
                    for step in [-3, -2, -1, 1, 2, 3] {
                        let got = slice(start, stop, step, len).unwrap();
                        // Walk from far outside and keep what lies between the ends.
                        let from = |v: i64| if v < 0 { v + len } else { v };
                        let begin = start.map_or(if step > 0 { 0 } else { len - 1 }, from);
                        let begin = if step > 0 { begin.max(0) } else { begin.min(len - 1) };
                        let end = stop.map_or(if step > 0 { len } else { -1 }, |v| from(v).max(-1));
                        let mut want = Vec::new();
                        let mut x = begin;
                        while if step > 0 { x < end.min(len) } else { x > end && x >= 0 } {
                            want.push(x);
                            x += step;
                        }
                        let have: Vec<i64> = (0..got.len as i64).map(|k| got.start + k * got.step).collect();
                        assert_eq!(have, want, "{start:?}:{stop:?}:{step} of {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn parts_of_a_selection_against_a_loop() {
        for text in [":", "1:7:2", "::-1", "6::-3", "::3", "2:2", "5", "1::9223372036854775807", "7::-9223372036854775807"] {
            let axis = resolve(&parse(text).unwrap(), &[9]).unwrap()[0];
            for from in 0..10 {
                for to in from..10 {
                    let inside = |k: &i64| (from..to).contains(&(axis.start + k * axis.step));
                    let want: Vec<i64> = (0..axis.len as i64).filter(inside).collect();
                    let (first, end) = axis.within((from, to));
                    assert_eq!((first..end).collect::<Vec<_>>(), want, "{text} in {from}..{to}");
                    assert!((0..=axis.len as i64).contains(&first), "{text} in {from}..{to}: {first}");
                }
            }
        }
    }

    #[test]
    fn axes() {
        let axes = resolve(&parse("0:10, :, -1").unwrap(), &[20, 3, 7]).unwrap();
        assert_eq!(axes[0], AxisSelect { start: 0, step: 1, len: 10, dropped: false });
        assert_eq!(axes[1], AxisSelect::whole(3));
        assert_eq!(axes[2], AxisSelect { start: 6, step: 1, len: 1, dropped: true });
        assert_eq!(taken("1", &[2, 2]), [vec![1], vec![0, 1]]);
        assert_eq!(taken("..., 1", &[2, 2]), [vec![0, 1], vec![1]]);
        assert_eq!(taken("0, ..., 1,", &[1, 2]), [vec![0], vec![1]]);
        assert_eq!(taken("...", &[2]), [vec![0, 1]]);
        assert!(taken("...", &[]).is_empty());
    }

    #[test]
    fn refused() {
        for (text, why) in [
            ("", "empty"),
            ("0:1,,2", "empty"),
            ("::0", "step of \"::0\" is 0"),
            ("1:2:3:4", "more than two colons"),
            ("a:3", "\"a\" in \"a:3\" is not an integer"),
            ("[0:3]", "not an integer"),
            ("1.5", "not an integer"),
            ("None", "not an integer"),
            ("99999999999999999999", "not an integer"),
            ("..., ...", "only once"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = |text, shape| resolve(&parse(text).unwrap(), shape).unwrap_err();
        assert_eq!(error(":, 5", &[9, 5]), "select has index 5 for axis 1, which has length 5");
        assert_eq!(error("-9223372036854775808", &[9]), "select has index -9223372036854775808 for axis 0, which has length 9");
        assert_eq!(error(":,:", &[9]), "select has 2 entries, the array has 1 axes");
        assert!(error(":", &[u64::MAX]).contains("impossible length"));
    }
}
