//! Arrays in object stores and on web servers, read by the real binary from servers in this process.

#[path = "../common/mod.rs"]
mod common;
mod server;

mod faults;
mod groups;
mod inputs;
mod outputs;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Array, Folder, Random};
use halostream::config::CodecName;
use server::Server;

struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl Ended {
    #[track_caller]
    fn done(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    #[track_caller]
    fn fails(&self, code: i32, says: &[&str]) {
        assert!(self.code == code && says.iter().all(|text| self.err.contains(text)), "exit {}: {}", self.code, self.err);
    }
}

const KEY: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

/// Runs `halostream ARGS` in a folder, with nothing of stores in its environment but these variables.
fn halostream(folder: &Folder, args: &[&str], env: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halostream"));
    command.args(args).current_dir(&folder.0).env_remove("HALOSTREAM_LOG").stdin(Stdio::null());
    for (name, _) in std::env::vars() {
        let upper = name.to_ascii_uppercase();
        if upper.starts_with("AWS_") || upper.starts_with("GOOGLE_") || upper.ends_with("_PROXY") {
            command.env_remove(&name);
        }
    }
    let ended = command.envs(env.iter().copied()).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&folder.0.display().to_string(), "FOLDER");
    Ended { code: ended.status.code().expect("no signal ended it"), out: text(&ended.stdout), err: text(&ended.stderr) }
}

/// What makes a server S3.
fn s3(server: &Server) -> Vec<(&'static str, String)> {
    let of = |text: &str| text.to_owned();
    vec![
        ("AWS_ENDPOINT_URL", format!("http://{}", server.address)),
        ("AWS_ALLOW_HTTP", of("true")),
        ("AWS_ACCESS_KEY_ID", of(KEY)),
        ("AWS_SECRET_ACCESS_KEY", of(SECRET)),
        ("AWS_REGION", of("eu-west-3")),
    ]
}

/// What makes it Google Cloud Storage, public.
fn gs(server: &Server) -> Vec<(&'static str, String)> {
    vec![("GOOGLE_BASE_URL", format!("http://{}", server.address)), ("GOOGLE_SKIP_SIGNATURE", "true".to_owned())]
}

fn borrowed<'e>(env: &'e [(&'static str, String)]) -> Vec<(&'static str, &'e str)> {
    env.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

/// Copies an input to `out.zarr`, with more lines in the input's table.
fn copy_job(folder: &Folder, path: &str, lines: &str) {
    let text = format!(
        "[input]\npath = \"{path}\"\n{lines}\n[output]\npath = \"out.zarr\"\n[engine]\nmemory = \"64MiB\"\nworkers = 2\n"
    );
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
}

fn report(folder: &Folder) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.path("report.json")).expect("a report")).expect("JSON")
}

const RUN: [&str; 4] = ["run", "job.toml", "--report", "report.json"];

/// Random values, in runs of equal ones, none of them 0.
fn values(r: &mut Random, shape: &[u64]) -> Array {
    let mut value = 1;
    let next = |r: &mut Random| {
        value = if r.range(0, 2) == 0 { r.range(1, 60_000) as u16 } else { value };
        value
    };
    let count = shape.iter().product::<u64>();
    let mut next = next;
    let values: Vec<u16> = (0..count).map(|_| next(r)).collect();
    Array::new(shape, &values)
}

/// Writes an array of 6 by 4 chunks of 8 by 5, compressed, into a bucket.
fn small(folder: &Folder, name: &str) -> Array {
    let array = values(&mut Random(7), &[48, 20]);
    common::write(&bucket(folder).join(name), &array, &[8, 5], None, CodecName::Zstd);
    array
}

/// The folder behind a server's bucket.
fn bucket(folder: &Folder) -> std::path::PathBuf {
    folder.path("served/bucket")
}

fn served(folder: &Folder) -> std::path::PathBuf {
    folder.path("served")
}

fn is_chunk(request: &server::Request) -> bool {
    request.method == "GET" && request.path.contains("/c/")
}

fn output(folder: &Folder) -> Array {
    common::read(&folder.path("out.zarr"), None)
}

/// All text below a folder.
fn texts(path: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(path).expect("a folder").flatten() {
        match entry.path().is_dir() {
            true => text += &texts(&entry.path()),
            false => text += &String::from_utf8_lossy(&std::fs::read(entry.path()).expect("a file")),
        }
    }
    text
}
