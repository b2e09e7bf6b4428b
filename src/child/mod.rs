//! Programs of the user that speak protocol 1 on stdin and stdout, as `external` steps and `command` inputs start them.
//!
//! One child process: start, one block at a time, end. Costs a thread that forwards the child's stderr to the log.
//!
//! The child leads a process group of its own, so that Ctrl-C on the terminal reaches halostream first, and dies with
//! the thread that started it (`PR_SET_PDEATHSIG`): workers live as long as a phase, and `close` comes before their end.

pub mod dialogue;
pub mod pipe;

use std::collections::VecDeque;
use std::io::{BufReader, Read};
use std::ops::DerefMut;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child as Process, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::dialogue::{Dialogue, Slot, Trouble, shown};
use self::pipe::{Cut, Watch};
use crate::array::Block;

/// How long a child may take to end after its stdin was closed.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
/// How long a child that closed its stdout has to end, and its last words to arrive.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Lines of stderr shown with an error.
const TAIL_LINES: usize = 20;
/// Longer lines on stderr are cut.
const TAIL_LINE_BYTES: usize = 4096;

/// What to run and what it may use.
#[derive(Clone, Debug)]
pub struct Program {
    pub command: Vec<String>,
    pub params: Value,
    /// For the start, and for each block.
    pub timeout: Duration,
    /// Resident bytes a child may hold.
    pub memory: u64,
}

/// Why a child did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// It died or was too slow: a fresh one may do better.
    Lost(String),
    /// The answer is wrong, or says that the function failed.
    Final(String),
    /// The job was stopped meanwhile.
    Stopped,
}

/// A running child.
pub struct Child {
    process: Process,
    dialogue: Dialogue,
    stderr: Stderr,
    timeout: Duration,
    memory: u64,
}

impl Child {
    /// Starts the program and waits until it is ready.
    pub fn start(program: &Program, worker: usize, stop: &AtomicBool) -> Result<Self, Failure> {
        let command = program.command.join(" ");
        let refused = |e: std::io::Error| {
            Failure::Final(format!("cannot start `{command}`: {e}; a relative path counts from the folder halostream runs in"))
        };
        let mut process = spawn(&program.command).map_err(refused)?;
        let ends = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = ends else {
            return Err(Failure::Final(format!("cannot start `{command}`: no pipes")));
        };
        let pid = process.id();
        tracing::debug!(target: "external", worker, pid, %command, "child started");
        let stderr = Stderr::forward(stderr, worker, pid).map_err(refused)?;
        let dialogue = Dialogue::new(stdin, stdout, command.clone()).map_err(refused)?;
        let mut child = Self { process, dialogue, stderr, timeout: program.timeout, memory: program.memory };
        let watch = child.watch(stop);
        child.dialogue.greet(&program.params, &watch).map_err(|e| child.failure(e))?;
        Ok(child)
    }

    fn watch<'a>(&self, stop: &'a AtomicBool) -> Watch<'a> {
        // A timeout beyond what a clock can hold is one that never comes.
        let now = Instant::now();
        let deadline = now.checked_add(self.timeout).unwrap_or(now + Duration::from_secs(86_400 * 365));
        Watch { stop, deadline, pid: self.process.id(), memory: self.memory }
    }

    /// Has the child do one block: `request` is the header, `blocks` follow; fills the buffers of `slots`.
    /// After a failure the child is of no use any more.
    pub fn ask<B: DerefMut<Target = [u8]>>(
        &mut self,
        number: u64,
        request: &Value,
        blocks: Vec<&Block>,
        slots: &mut [Slot<B>],
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let watch = self.watch(stop);
        self.dialogue.ask(number, request, blocks, slots, &watch).map_err(|e| self.failure(e))
    }

    /// False when the child read no more: it can get no further block.
    pub fn is_open(&self) -> bool {
        self.dialogue.is_open()
    }

    /// What an interrupted talk means. The child is ended on the way.
    fn failure(&mut self, trouble: Trouble) -> Failure {
        let cut = match trouble {
            Trouble::Cut(cut) => cut,
            Trouble::Wrong(text) => return Failure::Final(text),
        };
        let command = self.dialogue.command().to_owned();
        let text = match cut {
            Cut::Stopped => return Failure::Stopped,
            Cut::TimedOut => format!("`{command}` gave no answer within {:?} (raise timeout)", self.timeout),
            Cut::OverMemory(bytes) => {
                let mib = |b: u64| b.div_ceil(1 << 20);
                return Failure::Final(format!(
                    "`{command}` holds {} MiB, child_memory is {} MiB; raise child_memory or make blocks smaller",
                    mib(bytes),
                    mib(self.memory)
                ));
            }
            Cut::LongLine(line) => {
                let text = format!("sent {} where a line of JSON was due (no end)", shown(&line));
                return Failure::Final(self.dialogue.wrong(&text));
            }
            Cut::Failed(e) => format!("`{command}` cannot be talked to: {e}"),
            Cut::Closed => {
                let status = self.wait(LAST_WORDS);
                let how = status.map_or("closed its stdout and was ended".to_owned(), describe_end);
                format!("`{command}` {how}")
            }
        };
        self.kill();
        Failure::Lost(text + &self.stderr.tail())
    }

    fn wait(&mut self, at_most: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + at_most;
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(status);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        // Not yet reaped, so the process id, which is its group's too, can't belong to someone else.
        if let Ok(None) = self.process.try_wait() {
            // SAFETY: a signal to the group that this child leads.
            unsafe { libc::kill(-(self.process.id() as libc::pid_t), libc::SIGKILL) };
            let _ = self.process.wait();
        }
    }

    /// Closes stdin, waits a little, then kills.
    pub fn close(mut self) {
        self.dialogue.close_stdin();
        match self.wait(CLOSE_GRACE) {
            Some(status) if status.success() => {
                let rest = self.dialogue.rest();
                if !rest.is_empty() {
                    tracing::warn!(target: "external", "`{}` sent {} after its last answer", self.dialogue.command(), shown(&rest));
                }
            }
            Some(status) => {
                tracing::warn!(target: "external", "`{}` {} after its last block", self.dialogue.command(), describe_end(status));
            }
            None => {
                let seconds = CLOSE_GRACE.as_secs();
                tracing::warn!(target: "external", "`{}` was killed: still there {seconds} s after its stdin closed", self.dialogue.command());
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(command: &[String]) -> std::io::Result<Process> {
    let (program, args) = command.split_first().ok_or_else(|| std::io::Error::other("the command is empty"))?;
    let parent = std::process::id();
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec only prctl and getppid run, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // The parent may have died before the line above.
            if libc::getppid() as u32 != parent {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
    command.spawn()
}

fn describe_end(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (_, Some(libc::SIGKILL)) => "was killed (SIGKILL; perhaps out of memory)".to_owned(),
        (_, Some(libc::SIGSEGV)) => "crashed (SIGSEGV)".to_owned(),
        (_, Some(libc::SIGABRT)) => "aborted (SIGABRT)".to_owned(),
        (_, signal) => format!("was ended by signal {}", signal.unwrap_or(0)),
    }
}

/// Forwards stderr to the log line by line and keeps the last lines.
struct Stderr {
    tail: Arc<Mutex<VecDeque<String>>>,
    thread: JoinHandle<()>,
}

impl Stderr {
    fn forward(stderr: ChildStderr, worker: usize, pid: u32) -> std::io::Result<Self> {
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let kept = tail.clone();
        let thread = std::thread::Builder::new().name(format!("stderr of {pid}")).stack_size(256 << 10).spawn(move || {
            each_line(BufReader::new(stderr), |line| {
                tracing::info!(target: "external", worker, pid, "{line}");
                let mut tail = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if tail.len() == TAIL_LINES {
                    tail.pop_front();
                }
                tail.push_back(line);
            });
        })?;
        Ok(Self { tail, thread })
    }

    /// The last lines, once the child is gone; the thread gets a moment to read them.
    fn tail(&self) -> String {
        let until = Instant::now() + LAST_WORDS;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.is_empty() {
            return "; nothing on its stderr".to_owned();
        }
        let lines: String = tail.iter().map(|line| format!("\n  {line}")).collect();
        format!("; its stderr ends with{lines}")
    }
}

/// Calls `each` for every line, cut at [`TAIL_LINE_BYTES`].
fn each_line(mut from: impl Read, mut each: impl FnMut(String)) {
    let mut part = [0; 4096];
    let mut line = Vec::new();
    loop {
        let n = match from.read(&mut part) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        for &byte in &part[..n] {
            if byte == b'\n' {
                each(String::from_utf8_lossy(&line).into_owned());
                line.clear();
            } else if line.len() < TAIL_LINE_BYTES {
                line.push(byte);
            }
        }
    }
    if !line.is_empty() {
        each(String::from_utf8_lossy(&line).into_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_counted() {
        let text = format!("one\n\n{}\nlast", "x".repeat(5000));
        let mut lines = Vec::new();
        each_line(text.as_bytes(), |line| lines.push(line));
        assert_eq!((lines[0].as_str(), lines[1].as_str(), lines[2].len(), lines[3].as_str()), ("one", "", 4096, "last"));
    }
}
