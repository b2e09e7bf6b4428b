//! Free bytes of the file system that a path is on.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that this process may still write where `path` is, or will be once its folders are made.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let mut at = path;
    loop {
        match free_at(at) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => match at.parent() {
                Some(parent) if parent != Path::new("") => at = parent,
                _ => return Err(error),
            },
            result => return result,
        }
    }
}

fn free_at(path: &Path) -> io::Result<u64> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: zeroes are a valid statvfs, and the name is a C string that lives through the call.
    let (result, stat) = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(name.as_ptr(), &mut stat), stat)
    };
    match result {
        0 => Ok(stat.f_bavail.saturating_mul(stat.f_frsize)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_is_there_and_what_will_be() {
        let here = std::env::temp_dir();
        assert!(free_bytes(&here).unwrap() > 0);
        assert!(free_bytes(&here.join("halostream-no/such/folder")).unwrap() > 0);
    }
}
