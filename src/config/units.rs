//! "4GiB", "30s": sizes and durations as people write them.
//!
//! `16GB` is 16 * 10^9 bytes; `16GiB` and `16G` are 16 * 2^30. Fractions are exact in decimal, rounded down to a byte
//! or a nanosecond.

use std::time::Duration;

/// Digits after the point that are accepted: more say nothing about a size.
const MAX_DECIMALS: usize = 9;

/// Bytes from `2GiB`, `16GB`, `1.5G`, `64 KiB`, `3145728`. Units are read in any case.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = |why: &str| format!("\"{text}\" {why}; write a size such as \"2GiB\", \"512MiB\" or \"16GB\"");
    let (number, unit, rest) = split(text.trim()).map_err(|e| wrong(&e))?;
    if !rest.is_empty() {
        return Err(wrong("is not a size"));
    }
    let scale: u128 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        _ => return Err(wrong(&format!("has an unknown unit \"{unit}\""))),
    };
    scaled(number, scale).and_then(|n| u64::try_from(n).ok()).ok_or_else(|| wrong("is larger than 64 bits hold"))
}

/// A duration from `30s`, `5min`, `2h`, `500ms`, `90d`, `1h30min`, `1.5h`. A unit is required.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = |why: &str| format!("\"{text}\" {why}; write a duration such as \"30s\", \"5min\", \"1h30min\" or \"500ms\"");
    let mut rest = text.trim();
    let mut total: u128 = 0;
    let mut smaller_than = u128::MAX;
    if rest.is_empty() {
        return Err(wrong("is empty"));
    }
    while !rest.is_empty() {
        let (number, unit, more) = split(rest).map_err(|e| wrong(&e))?;
        let nanos: u128 = match unit {
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "min" | "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            "" => return Err(wrong("has no unit")),
            _ => return Err(wrong(&format!("has an unknown unit \"{unit}\" (known are ms, s, min, h, d)"))),
        };
        if nanos >= smaller_than {
            return Err(wrong("has its units out of order"));
        }
        smaller_than = nanos;
        total = scaled(number, nanos).and_then(|n| total.checked_add(n)).ok_or_else(|| wrong("is too long"))?;
        rest = more.trim_start();
    }
    let seconds = u64::try_from(total / 1_000_000_000).ok().filter(|s| *s <= u64::from(u32::MAX));
    let seconds = seconds.ok_or_else(|| wrong("is too long"))?;
    Ok(Duration::new(seconds, (total % 1_000_000_000) as u32))
}

/// A number's whole and fractional digits.
type Number<'t> = (&'t str, &'t str);

/// The leading number, the letters behind it, and what is left.
fn split(text: &str) -> Result<(Number<'_>, &str, &str), String> {
    if text.starts_with('-') {
        return Err("is negative".to_owned());
    }
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() {
        return Err("does not begin with a number".to_owned());
    }
    if fraction.len() > MAX_DECIMALS {
        return Err(format!("has more than {MAX_DECIMALS} decimals"));
    }
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
    Ok(((whole, fraction), &rest[..end], &rest[end..]))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn scaled((whole, fraction): Number<'_>, scale: u128) -> Option<u128> {
    let all: u128 = whole.parse::<u128>().ok()?.checked_mul(scale)?;
    let part = fraction.parse::<u128>().unwrap_or(0).checked_mul(scale)? / 10u128.pow(fraction.len() as u32);
    all.checked_add(part)
}

/// Three significant digits with a binary unit: `512B`, `15.3MiB`, `1.00GiB`.
pub fn format_bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64;
    for unit in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        value /= 1024.0;
        // 1023.6 would be printed as 1024, which is one of the next unit.
        if value < 1023.5 || unit == "EiB" {
            let decimals = if value < 9.995 {
                2
            } else if value < 99.95 {
                1
            } else {
                0
            };
            return format!("{value:.decimals$}{unit}");
        }
    }
    format!("{bytes}B")
}

/// Two units at most, in the form that [`parse_duration`] reads: `350ms`, `12.3s`, `2min05s`, `1h02min`, `3d04h`.
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let seconds = duration.as_secs();
    if millis < 1000 {
        format!("{millis}ms")
    } else if millis < 59_950 {
        format!("{:.1}s", duration.as_secs_f64())
    } else if seconds < 3600 {
        let seconds = seconds.max(60);
        format!("{}min{:02}s", seconds / 60, seconds % 60)
    } else if seconds < 86_400 {
        format!("{}h{:02}min", seconds / 3600, seconds % 3600 / 60)
    } else {
        format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, want) in [
            ("2GiB", 2 << 30),
            ("16GB", 16_000_000_000),
            ("16G", 16 << 30),
            ("512MiB", 512 << 20),
            ("3145728", 3_145_728),
            ("1.5GiB", 3 << 29),
            ("0.1KiB", 102),
            (" 64 KiB ", 64 << 10),
            ("7b", 7),
            ("1gib", 1 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(want), "{text}");
        }
        for (text, why) in [
            ("", "does not begin with a number"),
            ("-2GiB", "is negative"),
            ("2GiBs", "unknown unit \"GiBs\""),
            ("2GiB 3MiB", "is not a size"),
            ("half", "does not begin with a number"),
            (".5G", "does not begin with a number"),
            ("99999999PiB", "64 bits"),
            ("18446744073709551616", "64 bits"),
            ("999999999999999999999999999999999999999999999", "64 bits"),
            ("1.0000000000000000001G", "decimals"),
            ("2 µ", "unknown unit"),
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains(why) && error.contains("\"2GiB\""), "{text}: {error}");
        }
    }

    #[test]
    fn durations() {
        for (text, millis) in [
            ("30s", 30_000),
            ("5min", 300_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("500ms", 500),
            ("1h30min", 5_400_000),
            ("1.5h", 5_400_000),
            ("90d", 90 * 86_400_000),
            ("1min 5s", 65_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, why) in [
            ("30", "no unit"),
            ("", "empty"),
            ("-1s", "negative"),
            ("30s1h", "out of order"),
            ("1s1s", "out of order"),
            ("99999999999999999d", "too long"),
            ("3 weeks", "unknown unit \"weeks\""),
            ("1h,", "does not begin"),
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains(why) && error.contains("\"30s\""), "{text}: {error}");
        }
    }

    #[test]
    fn written_for_people() {
        for (bytes, want) in [
            (0, "0B"),
            (512, "512B"),
            (1 << 10, "1.00KiB"),
            (1 << 30, "1.00GiB"),
            (16_043_212, "15.3MiB"),
            ((1 << 30) - 1, "1.00GiB"),
            (10 * (1 << 20) - 1, "10.0MiB"),
            (100 * (1 << 20) - 1, "100MiB"),
            (u64::MAX, "16.0EiB"),
        ] {
            assert_eq!(format_bytes(bytes), want);
        }
        for (millis, want) in [
            (0, "0ms"),
            (350, "350ms"),
            (12_340, "12.3s"),
            (59_980, "1min00s"),
            (125_000, "2min05s"),
            (3_725_000, "1h02min"),
            (3 * 86_400_000 + 4 * 3_600_000, "3d04h"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), want);
            assert!(parse_duration(want).is_ok(), "{want}");
        }
    }
}
