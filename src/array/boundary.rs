//! What lies outside an array: index maps, per axis and side, used by halo exchange and by every chained step.

use super::{DType, Intervals, Scalar};
use std::fmt;

/// The rule for the cells beyond one end of an axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rule {
    /// Edge cell repeated: `2 1 | 1 2 3` (numpy `symmetric`, scipy `reflect`).
    Reflect,
    /// Edge cell not repeated: `3 2 | 1 2 3` (numpy `reflect`, scipy `mirror`).
    Mirror,
    /// `1 1 | 1 2 3`
    Nearest,
    /// `2 3 | 1 2 3`
    Periodic,
    /// No cells: edge blocks are smaller.
    None,
    /// A value.
    Constant(f64),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Reflect => f.write_str("reflect"),
            Rule::Mirror => f.write_str("mirror"),
            Rule::Nearest => f.write_str("nearest"),
            Rule::Periodic => f.write_str("periodic"),
            Rule::None => f.write_str("none"),
            Rule::Constant(v) => write!(f, "{v}"),
        }
    }
}

/// Boundary of an input of a step: `[axis] = [before, after]`.
pub type Boundary = Vec<[Rule; 2]>;

/// Where a padded cell takes its value from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    Cell(i64),
    /// The constant of the side before (0) or after (1).
    Constant(usize),
    /// Rule `none`: the cell does not exist.
    Absent,
}

/// The origin of coordinate `x` on an axis of length `len` (> 0).
pub fn origin(x: i64, len: i64, rules: &[Rule; 2]) -> Origin {
    let mut at = x;
    let mut bounced = None;
    // Several reflections are needed when the depth exceeds the axis; each side's own rule applies where the cell leaves
    // it. A side without cells cannot answer a cell that came back from the other side: there the other's rule goes on.
    loop {
        let side = if at < 0 {
            0
        } else if at >= len {
            1
        } else {
            return Origin::Cell(at);
        };
        let rule = match (rules[side], bounced) {
            (Rule::None, Some(other)) => other,
            (own, _) => own,
        };
        bounced = Some(rule);
        at = match rule {
            Rule::Reflect => {
                if side == 0 {
                    -1 - at
                } else {
                    2 * len - 1 - at
                }
            }
            Rule::Mirror if len == 1 => 0,
            Rule::Mirror => {
                if side == 0 {
                    -at
                } else {
                    2 * (len - 1) - at
                }
            }
            Rule::Nearest => {
                if side == 0 {
                    0
                } else {
                    len - 1
                }
            }
            Rule::Periodic => at.rem_euclid(len),
            Rule::Constant(_) => return Origin::Constant(side),
            Rule::None => return Origin::Absent,
        };
    }
}

/// A run of padded cells: `len` cells from `dst` on come from `src`, `src + step`, ...
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub dst: usize,
    pub len: usize,
    pub from: RunFrom,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunFrom {
    Cells {
        src: i64,
        step: i64,
    },
    /// The constant of the side before (0) or after (1).
    Constant(usize),
}

/// The padded interval `[start, stop)` as runs, `dst` counted from `start`. Cells that do not exist have no run: with
/// rule `none` the caller clips the interval first (see [`clip_none`]).
pub fn runs(start: i64, stop: i64, len: i64, rules: &[Rule; 2]) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    let mut x = start;
    while x < stop {
        let dst = (x - start) as usize;
        // The inside of the array is one run, however long.
        if x >= 0 && x < len {
            let end = stop.min(len);
            out.push(Run { dst, len: (end - x) as usize, from: RunFrom::Cells { src: x, step: 1 } });
            x = end;
            continue;
        }
        match origin(x, len, rules) {
            Origin::Absent => {}
            Origin::Constant(side) => match out.last_mut() {
                Some(Run { len, from: RunFrom::Constant(s), .. }) if *s == side => *len += 1,
                _ => out.push(Run { dst, len: 1, from: RunFrom::Constant(side) }),
            },
            Origin::Cell(src) => {
                let outside = x < 0 || x > len; // the inside run is never extended, so that it stays recognisable
                match out.last_mut() {
                    Some(Run { len, dst: at, from: RunFrom::Cells { src: first, step } }) if outside && *at + *len == dst => {
                        let last = *first + *step * (*len as i64 - 1);
                        if *len == 1 && (src - *first).abs() <= 1 {
                            *step = src - *first;
                            *len = 2;
                        } else if src - last == *step {
                            *len += 1;
                        } else {
                            out.push(Run { dst, len: 1, from: RunFrom::Cells { src, step: 1 } });
                        }
                    }
                    _ => out.push(Run { dst, len: 1, from: RunFrom::Cells { src, step: 1 } }),
                }
            }
        }
        x += 1;
    }
    out
}

/// `[start, stop)` cut where rule `none` says that there are no cells.
pub fn clip_none(start: i64, stop: i64, len: i64, rules: &[Rule; 2]) -> (i64, i64) {
    let start = if rules[0] == Rule::None { start.max(0) } else { start };
    let stop = if rules[1] == Rule::None { stop.min(len) } else { stop };
    (start, stop)
}

/// The cells of the array that the padded interval `[start, stop)` reads, as disjoint intervals: a periodic edge block
/// needs both ends, not the whole axis.
pub fn needed(start: i64, stop: i64, len: i64, rules: &[Rule; 2]) -> Intervals {
    let mut set = Intervals::empty();
    let (start, stop) = clip_none(start, stop, len, rules);
    for run in runs(start, stop, len, rules) {
        if let RunFrom::Cells { src, step } = run.from {
            let last = src + step * (run.len as i64 - 1);
            set.add(src.min(last), src.max(last) + 1);
        }
    }
    set
}

/// The boundary's constants as values of `dtype`: `[axis][side]`, checked (I5).
pub fn constants(boundary: &Boundary, dtype: DType) -> Result<Vec<[Option<Scalar>; 2]>, String> {
    boundary
        .iter()
        .enumerate()
        .map(|(axis, rules)| {
            let one = |rule: Rule| match rule {
                Rule::Constant(v) => Scalar::from_number(dtype, v).map(Some).map_err(|e| format!("boundary of axis {axis}: {e}")),
                _ => Ok(None),
            };
            Ok([one(rules[0])?, one(rules[1])?])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(depth: (i64, i64), len: i64, rules: [Rule; 2]) -> Vec<i64> {
        (-depth.0..len + depth.1)
            .map(|x| match origin(x, len, &rules) {
                Origin::Cell(c) => c,
                Origin::Constant(s) => -10 - s as i64,
                Origin::Absent => -1,
            })
            .collect()
    }

    #[test]
    fn rules_match_numpy_pad() {
        // python3 -c "import numpy as np; [print(np.pad(np.arange(3), (5, 4), m)) for m in ('symmetric', 'reflect', 'edge', 'wrap')]"
        let both = |r| [r, r];
        assert_eq!(picture((5, 4), 3, both(Rule::Reflect)), [1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0]);
        assert_eq!(picture((5, 4), 3, both(Rule::Mirror)), [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2]);
        assert_eq!(picture((5, 4), 3, both(Rule::Nearest)), [0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]);
        assert_eq!(picture((5, 4), 3, both(Rule::Periodic)), [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(picture((2, 1), 1, both(Rule::Mirror)), [0, 0, 0, 0]);
        assert_eq!(picture((2, 2), 2, [Rule::Constant(7.0), Rule::None]), [-10, -10, 0, 1, -1, -1]);
        assert_eq!(picture((5, 0), 2, [Rule::Reflect, Rule::None]), [0, 0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn runs_say_the_same_as_origins() {
        let rules = [Rule::Reflect, Rule::Mirror, Rule::Nearest, Rule::Periodic, Rule::Constant(1.0)];
        for before in rules {
            for after in rules {
                for len in 1..6 {
                    for (start, stop) in [(-7, len + 8), (-3, 1), (len - 1, len + 5), (-9, -2), (len + 2, len + 9), (0, len)] {
                        let both = [before, after];
                        let mut seen = vec![None; (stop - start) as usize];
                        for run in runs(start, stop, len, &both) {
                            for k in 0..run.len {
                                let o = match run.from {
                                    RunFrom::Cells { src, step } => Origin::Cell(src + step * k as i64),
                                    RunFrom::Constant(s) => Origin::Constant(s),
                                };
                                assert!(seen[run.dst + k].replace(o).is_none());
                            }
                        }
                        let want: Vec<_> = (start..stop).map(|x| Some(origin(x, len, &both))).collect();
                        assert_eq!(seen, want, "{before:?} {after:?} len {len} {start}..{stop}");
                    }
                }
            }
        }
    }

    #[test]
    fn periodic_edge_needs_both_ends_only() {
        let need = needed(-3, 10, 100, &[Rule::Periodic, Rule::Periodic]);
        assert_eq!(need.iter().collect::<Vec<_>>(), [(0, 10), (97, 100)]);
        assert_eq!(needed(-3, 10, 100, &[Rule::Constant(0.0), Rule::None]), Intervals::one(0, 10));
    }
}
