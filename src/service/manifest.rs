//! The policy `manifest`: a list of files with their sizes and, where it has them, their SHA-256.
//!
//! Two forms: `{"files": [{"path": "c/0/0", "size": 1234, "sha256": "..."}]}`, and what `sha256sum` prints. Paths start at
//! the list's own folder and stay below it. Costs a read of every file that has a hash.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path};

use serde::Deserialize;
use sha2::{Digest, Sha256};

const MAX_BYTES: u64 = 64 << 20;

#[derive(Deserialize)]
struct Listing {
    files: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    path: String,
    size: Option<u64>,
    sha256: Option<String>,
}

/// Ok when every listed file is there as listed; else the first that is not. `input` must be among them or hold them.
pub fn check(list: &Path, input: &Path) -> Result<(), String> {
    let listed = read(list)?;
    let folder = list.parent().unwrap_or(Path::new("."));
    let mut holds_input = false;
    for file in &listed {
        let relative = Path::new(&file.path);
        if !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
            return Err(format!("the manifest names {:?}, which is not below its folder", file.path));
        }
        let path = folder.join(relative);
        holds_input |= path.starts_with(input);
        let metadata = fs::symlink_metadata(&path).map_err(|_| format!("{:?} of the manifest is not there yet", file.path))?;
        if !metadata.is_file() {
            return Err(format!("{:?} of the manifest is no regular file", file.path));
        }
        if let Some(size) = file.size.filter(|size| *size != metadata.len()) {
            return Err(format!("{:?} has {} bytes, the manifest says {size}", file.path, metadata.len()));
        }
        if let Some(want) = &file.sha256 {
            let got = sha256(&path).map_err(|e| format!("{:?}: {e}", file.path))?;
            if !got.eq_ignore_ascii_case(want) {
                return Err(format!("{:?} has SHA-256 {got}, the manifest says {want}", file.path));
            }
        }
    }
    if holds_input { Ok(()) } else { Err("the manifest lists nothing of this input".to_owned()) }
}

fn read(list: &Path) -> Result<Vec<Listed>, String> {
    let wrong = |what: String| format!("the manifest is not whole yet: {what}");
    let mut text = String::new();
    let file = File::open(list).map_err(|e| wrong(e.to_string()))?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|e| wrong(e.to_string()))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("the manifest is larger than {MAX_BYTES} bytes"));
    }
    if text.trim_start().starts_with('{') {
        return serde_json::from_str::<Listing>(&text).map(|l| l.files).map_err(|e| wrong(e.to_string()));
    }
    if !text.ends_with('\n') {
        return Err(wrong("its last line has no end".to_owned()));
    }
    let line = |line: &str| {
        let (hash, name) = line.split_once([' ', '\t'])?;
        let is_hash = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
        let path = name.trim_start_matches([' ', '*']).to_owned();
        (is_hash && !path.is_empty()).then(|| Listed { path, size: None, sha256: Some(hash.to_owned()) })
    };
    text.lines().map(|l| line(l).ok_or_else(|| wrong(format!("{l:?} is no line of sha256sum")))).collect()
}

/// SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> std::io::Result<String> {
    let mut digest = Sha256::new();
    feed(path, &mut digest)?;
    Ok(digest.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Feeds a file's bytes to a digest, a part at a time.
pub fn feed(path: &Path, digest: &mut Sha256) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let mut part = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut part)?;
        if n == 0 {
            return Ok(());
        }
        digest.update(&part[..n]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let folder = std::env::temp_dir().join(format!("halostream-service-manifest-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("in")).unwrap();
        fs::write(folder.join("in/a"), b"abc").unwrap();
        let list = folder.join("list");
        let says = |text: &str| {
            fs::write(&list, text).unwrap();
            check(&list, &folder.join("in"))
        };
        // printf abc | sha256sum
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(says(&format!("{hash}  in/a\n")), Ok(()));
        assert_eq!(says(r#"{"files":[{"path":"in/a","size":3}]}"#), Ok(()));
        for (text, why) in [
            (format!("{hash}  in/a"), "no end"),
            (format!("{}  in/a\n", hash.replace('b', "c")), "has SHA-256"),
            (r#"{"files":[{"path":"in/a","size":3}"#.to_owned(), "not whole yet"),
            (r#"{"files":[{"path":"in/a","size":4}]}"#.to_owned(), "has 3 bytes, the manifest says 4"),
            (r#"{"files":[{"path":"in/b"}]}"#.to_owned(), "not there yet"),
            (r#"{"files":[{"path":"../in/a"}]}"#.to_owned(), "not below its folder"),
            (r#"{"files":[]}"#.to_owned(), "nothing of this input"),
        ] {
            assert!(says(&text).unwrap_err().contains(why), "{text}");
        }
        let _ = fs::remove_dir_all(&folder);
    }
}
