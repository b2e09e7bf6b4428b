//! Compiled kernels on disk, so that only the first run on a machine pays NVRTC, and later ones do without it.
//!
//! A file per program, architecture and driver in `$HALOSTREAM_CACHE`, else `$XDG_CACHE_HOME/halostream`, else
//! `~/.cache/halostream`. A file that is damaged counts as absent; one that cannot be written costs the next run a second.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::job::{OPTIONS, Program};
use crate::compute::device::Arch;

/// Length of the digest in front of the code.
const DIGEST: usize = 32;

/// The cache's folder, if the environment names one.
pub fn folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("HALOSTREAM_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|p| p.join("halostream")))
        .or_else(|| var("HOME").map(|p| p.join(".cache/halostream")))
}

/// The file of a program: named by source, options, architecture and driver version.
pub fn file(folder: &Path, program: &Program, arch: Arch, driver: i32) -> PathBuf {
    let mut digest = Sha256::new();
    for part in [program.source().as_str(), &OPTIONS.join(" "), &arch.to_string(), &driver.to_string()] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let key: String = digest.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
    folder.join(format!("{}-{arch}-{key}.cubin", program.kernel.name))
}

/// The code in a file, if it is whole.
pub fn read(file: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(file).ok()?;
    let (digest, code) = bytes.split_at_checked(DIGEST)?;
    (Sha256::digest(code).as_slice() == digest).then(|| code.to_vec())
}

/// Stores code under its name at once and whole.
pub fn write(file: &Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let mut bytes = Sha256::digest(code).to_vec();
    bytes.extend_from_slice(code);
    std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, file)).inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

/// From the cache, else by `compile`, whose result is stored.
pub fn get(
    folder: Option<&Path>,
    program: &Program,
    arch: Arch,
    driver: i32,
    compile: impl FnOnce() -> Result<Vec<u8>, String>,
) -> Result<Vec<u8>, String> {
    let file = folder.map(|folder| file(folder, program, arch, driver));
    if let Some(code) = file.as_deref().and_then(read) {
        return Ok(code);
    }
    let code = compile()?;
    if let Some(file) = &file
        && let Err(error) = write(file, &code)
    {
        tracing::debug!(file = %file.display(), %error, "compiled kernel not cached");
    }
    Ok(code)
}
