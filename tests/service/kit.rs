//! A service in a folder of its own, inputs to drop into it, and ways to look at what it did.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use halostream::config::CodecName;
use halostream::service::ledger::Ledger;
use halostream::service::record::{Record, State};
use serde_json::Value;

use crate::common::{self, Array, Folder};

/// How many of something a test has: the small number, or what a variable says.
pub fn size(variable: &str, small: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(small)
}

/// Copies the input, chunk by chunk.
pub const COPY: &str = "[input]\npath = \"{input}\"\n[output]\npath = \"{output}\"\n";

pub fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halostream"));
    command.args(args).current_dir(&folder.0).env_remove("HALOSTREAM_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Runs a command to its end: exit code, stdout, stderr.
pub fn halostream(folder: &Folder, args: &[&str]) -> (i32, String, String) {
    let ended = command(folder, args).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ended.status.code().unwrap_or(-1), text(&ended.stdout), text(&ended.stderr))
}

/// A service file with one watch; `service` and `watch` are further keys.
pub fn write_service(folder: &Folder, service: &str, watch: &str) {
    let text = format!(
        "[service]\nlisten = \"127.0.0.1:0\"\nstate = \"state\"\ntoken_file = \"token\"\n{service}\n\
         [[watch]]\nname = \"w\"\ndirectory = \"in\"\npattern = \"*.zarr\"\njob = \"job.toml\"\noutput = \"out/{{stem}}.zarr\"\npoll = \"100ms\"\n{watch}\n"
    );
    write_whole(&folder.path("service.toml"), text.as_bytes());
}

/// A folder with a service that copies what arrives.
pub fn set_up(name: &str, service: &str, watch: &str) -> Folder {
    let folder = Folder::new(&format!("service-{name}"));
    std::fs::create_dir_all(folder.path("in")).expect("a folder");
    std::fs::write(folder.path("job.toml"), COPY).expect("a job file");
    write_service(&folder, service, watch);
    folder
}

/// Writes a file as editors do: under its name at once.
pub fn write_whole(path: &Path, bytes: &[u8]) {
    let temporary = path.with_extension("writing");
    std::fs::write(&temporary, bytes).expect("a file");
    std::fs::rename(&temporary, path).expect("a name");
}

/// The values of input number `seed`.
pub fn array(seed: u64) -> Array {
    let values: Vec<u16> = (0..96u64).map(|i| (seed * 131 + i * 7 + 1) as u16).collect();
    Array::new(&[12, 8], &values)
}

/// Writes an input of six chunks, in place.
pub fn write_input(path: &Path, seed: u64) {
    common::write(path, &array(seed), &[4, 4], None, CodecName::Gzip);
}

/// Drops an input: written elsewhere, renamed into the inbox.
pub fn drop_input(folder: &Folder, name: &str, seed: u64) {
    let aside = folder.path("aside").join(format!("{seed}.zarr"));
    let _ = std::fs::remove_dir_all(&aside);
    write_input(&aside, seed);
    std::fs::rename(aside, folder.path("in").join(name)).expect("a name");
}

#[track_caller]
pub fn assert_output(folder: &Folder, stem: &str, seed: u64) {
    let path = folder.path("out").join(format!("{stem}.zarr"));
    assert!(common::read(&path, None) == array(seed), "{} has other values", path.display());
}

#[track_caller]
pub fn wait_until<T>(what: &str, mut holds: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(value) = holds() {
            return value;
        }
        assert!(since.elapsed() < Duration::from_secs(90), "waited for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A service that runs; ended by the test if the test fails before.
pub struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    pub fn start(folder: &Folder, args: &[&str]) -> Self {
        Self::spawn(folder, command(folder, &[&["serve", "service.toml", "--log-format", "json"], args].concat()))
    }

    fn spawn(folder: &Folder, mut command: Command) -> Self {
        static N: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let log = folder.path(&format!("log-{}", N.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
        let file = std::fs::File::create(&log).expect("a log");
        let child = command.stdout(Stdio::null()).stderr(file).spawn().expect("the binary starts");
        Self { child, log }
    }

    /// Started, and every directory was scanned once.
    pub fn ready(folder: &Folder) -> Self {
        Self::ready_with(folder, &[])
    }

    /// The same, with more in its environment.
    pub fn ready_with(folder: &Folder, env: &[(&str, &Path)]) -> Self {
        let mut command = command(folder, &["serve", "service.toml", "--log-format", "json"]);
        command.envs(env.iter().copied());
        let service = Self::spawn(folder, command);
        wait_until("a service that is ready", || service.log().contains("service_ready").then_some(()));
        service
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// `kill -9`; what is left is its log.
    pub fn kill(mut self) -> Self {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self
    }

    /// The exit code.
    pub fn end(mut self) -> i32 {
        wait_until("the end of the service", || self.child.try_wait().expect("a child")).code().unwrap_or(-1)
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub fn stop(self) -> i32 {
        self.signal(libc::SIGTERM);
        self.end()
    }

    pub fn address(&self, folder: &Folder) -> SocketAddr {
        wait_until("an address", || {
            let text = std::fs::read_to_string(folder.path("state/lock")).ok()?;
            let holder: Value = serde_json::from_str(&text).ok()?;
            (holder["pid"] == self.pid()).then(|| holder["address"].as_str()?.parse().ok())?
        })
    }

    /// A request as it stands; code and body.
    pub fn send(&self, folder: &Folder, request: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address(folder)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        // The server may refuse and close before everything is sent.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        (head.split(' ').nth(1).and_then(|c| c.parse().ok()).unwrap_or(0), body.to_owned())
    }

    pub fn get(&self, folder: &Folder, path: &str) -> (u16, String) {
        self.send(folder, format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes())
    }

    pub fn status(&self, folder: &Folder) -> Value {
        serde_json::from_str(&self.get(folder, "/api/status").1).unwrap_or_default()
    }

    /// Inputs of the first watch in a state.
    pub fn count(&self, folder: &Folder, state: &str) -> u64 {
        self.status(folder)["watches"][0]["inputs"][state].as_u64().unwrap_or(0)
    }

    #[track_caller]
    pub fn wait_for(&self, folder: &Folder, state: &str, count: u64) {
        wait_until(&format!("{count} inputs {state}; {}", self.log_tail()), || {
            (self.count(folder, state) == count).then_some(())
        });
    }

    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(3)..].join("\n")
    }

    /// How often an event is in the log.
    pub fn events(&self, name: &str) -> usize {
        self.details(name).len()
    }

    /// What the log says beside an event, each time.
    pub fn details(&self, name: &str) -> Vec<Value> {
        let log = self.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let fields = lines.map(|mut line| line["fields"].take()).filter(|fields| fields["event"] == name);
        fields.filter_map(|fields| serde_json::from_str(fields["details"].as_str()?).ok()).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The ledger of a service that does not run.
pub fn records(folder: &Folder) -> Vec<Record> {
    let ledger = Ledger::open(&folder.path("state/ledger.redb")).expect("a ledger");
    let mut records: Vec<Record> = ledger.fold(Vec::new, |list, _, record| list.push(record)).expect("records");
    records.sort_by(|a, b| a.name.cmp(&b.name));
    records
}

#[track_caller]
pub fn record(folder: &Folder, name: &str) -> Record {
    records(folder).into_iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no record of {name}"))
}

/// Every input was processed, once.
#[track_caller]
pub fn assert_all_done_once(folder: &Folder, count: usize) {
    let records = records(folder);
    assert_eq!(records.len(), count, "{:?}", records.iter().map(|r| &r.name).collect::<Vec<_>>());
    for record in &records {
        let what = (record.state, record.version, record.reason.clone());
        assert_eq!(what, (State::Done, 1, None), "{}", record.name);
    }
}

/// A job of six blocks, each of which takes its time in a child.
pub fn slow_job(ms: u64) -> String {
    child_job(&format!("function = \"slow\", ms = {ms}"))
}

/// A job of six blocks that are done by a child.
pub fn child_job(params: &str) -> String {
    let child = toml::Value::String(common::child().display().to_string());
    format!(
        "[input]\npath = \"{{input}}\"\n[[step]]\nop = \"cast\"\ndtype = \"float64\"\n[[step]]\nop = \"external\"\ncommand = [{child}]\ndepth = 0\nboundary = \"none\"\ndtype = \"float64\"\n\
         params = {{ {params} }}\n[output]\npath = \"{{output}}\"\n[engine]\nblock = \"source\"\nworkers = 1\n"
    )
}
