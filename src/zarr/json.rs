//! Metadata documents. Python writes `NaN`, `Infinity` and `-Infinity` bare, which is not JSON: they are read as the
//! strings that Zarr v3 uses for the same values.

use serde_json::Value;

/// Parses a document.
pub fn parse(bytes: &[u8]) -> Result<Value, String> {
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(error) => serde_json::from_slice(&quote_numbers(bytes)).map_err(|_| format!("not JSON: {error}")),
    }
}

fn quote_numbers(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 64);
    let mut at = 0;
    let mut is_text = false;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if is_text && rest[0] == b'\\' && rest.len() > 1 {
            out.extend_from_slice(&rest[..2]);
            at += 2;
            continue;
        }
        is_text ^= rest[0] == b'"';
        let word = ["NaN", "-Infinity", "Infinity"].into_iter().find(|w| !is_text && rest.starts_with(w.as_bytes()));
        if let Some(word) = word {
            out.push(b'"');
            out.extend_from_slice(word.as_bytes());
            out.push(b'"');
            at += word.len();
        } else {
            out.push(rest[0]);
            at += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bare_nan_is_read() {
        let read = parse(br#"{"a": NaN, "b": [-Infinity, Infinity, 1], "c": "a \" NaN \\", "d": "NaN"}"#).unwrap();
        assert_eq!(read, json!({"a": "NaN", "b": ["-Infinity", "Infinity", 1], "c": "a \" NaN \\", "d": "NaN"}));
        assert!(parse(b"{\"a\": }").unwrap_err().contains("not JSON"));
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }
}
