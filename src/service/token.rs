//! The token of state-changing calls: one line of a file that only its owner can read; made when the file is not there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Shorter ones can be guessed.
const SHORTEST: usize = 16;

/// Reads the token, or makes one.
pub fn read_or_make(path: &Path) -> Result<String, String> {
    match read(path) {
        Ok(Some(token)) => Ok(token),
        Ok(None) => make(path).map_err(|e| format!("token_file {}: cannot be made: {e}", path.display())),
        Err(error) => Err(error),
    }
}

/// The token; `None` without a file.
pub fn read(path: &Path) -> Result<Option<String>, String> {
    let wrong = |what: String| format!("token_file {}: {what}", path.display());
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(error.to_string())),
    };
    if metadata.mode() & 0o077 != 0 {
        return Err(wrong("can be read by others; chmod 600 it, and change the token".to_owned()));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|e| wrong(e.to_string()))?;
    file.take(4096).read_to_string(&mut text).map_err(|e| wrong(e.to_string()))?;
    let token = text.trim();
    let is_good = token.len() >= SHORTEST && token.bytes().all(|b| b.is_ascii_graphic());
    if !is_good {
        return Err(wrong(format!(
            "holds no token: one line of at least {SHORTEST} letters and digits; remove it to get a new one"
        )));
    }
    Ok(Some(token.to_owned()))
}

fn make(path: &Path) -> io::Result<String> {
    let mut bytes = [0u8; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let token: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    Ok(token)
}
