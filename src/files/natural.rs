//! The order of names in which numbers count as numbers: `f2` before `f10`.

use std::cmp::Ordering;

/// Runs of digits compare by their value, everything else byte by byte. Names that differ in leading zeros alone are in the
/// order of their bytes, so the order is total.
pub fn order(a: &[u8], b: &[u8]) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(&x), Some(&y)) = (left.first(), right.first()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (m, n) = (number(&mut left), number(&mut right));
            m.len().cmp(&n.len()).then_with(|| m.cmp(n))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            x.cmp(&y)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Takes the digits in front, without leading zeros.
fn number<'t>(text: &mut &'t [u8]) -> &'t [u8] {
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    &digits[digits.iter().position(|c| *c != b'0').unwrap_or(end)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_as_numbers() {
        let mut names = ["f10", "f2", "f02", "f", "e11", "f2a", "f1b3", "f1b20", "f99999999999999999999999", "f0", "f00", "é"];
        names.sort_by(|a, b| order(a.as_bytes(), b.as_bytes()));
        let want = ["e11", "f", "f0", "f00", "f1b3", "f1b20", "f02", "f2", "f2a", "f10", "f99999999999999999999999", "é"];
        assert_eq!(names, want);
        for a in names {
            for b in names {
                assert_eq!(order(a.as_bytes(), b.as_bytes()), order(b.as_bytes(), a.as_bytes()).reverse());
            }
        }
    }
}
