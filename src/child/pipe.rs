//! Both pipes of a child at once: while an answer is awaited, what the child has not read yet is still being sent, so
//! that neither side can wait for the other for ever. Non-blocking ends and `poll`, no thread.
//!
//! Costs one staging buffer of [`STAGE_BYTES`] each way. Inputs that are views are sent run by run, never copied whole;
//! outputs are read straight into their buffers.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::process::{ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::array::Block;

/// Runs shorter than this are gathered before they are written.
pub const STAGE_BYTES: usize = 64 << 10;
/// The longest line a child may send.
pub const LINE_BYTES: usize = 1 << 20;
/// Asked of the kernel for each pipe: fewer switches between the two processes. Linux grants a user 64 MiB in all.
const PIPE_BYTES: libc::c_int = 1 << 20;
/// How often a wait looks at the job's stop flag.
const TICK: Duration = Duration::from_millis(50);
/// How often a wait looks at the child's memory.
const MEMORY_TICK: Duration = Duration::from_millis(250);

/// Why a transfer ended early.
#[derive(Debug)]
pub enum Cut {
    /// The job was stopped.
    Stopped,
    TimedOut,
    /// The child closed its stdout.
    Closed,
    /// The child's resident bytes, above what it may use.
    OverMemory(u64),
    /// A line beyond [`LINE_BYTES`]; its first bytes.
    LongLine(Vec<u8>),
    Failed(io::Error),
}

/// When to give up waiting.
pub struct Watch<'a> {
    pub stop: &'a AtomicBool,
    pub deadline: Instant,
    pub pid: u32,
    pub memory: u64,
}

impl Watch<'_> {
    /// Fails when the child holds more than it may.
    pub fn check_memory(&self) -> Result<(), Cut> {
        match resident_bytes(self.pid) {
            Some(bytes) if bytes > self.memory => Err(Cut::OverMemory(bytes)),
            _ => Ok(()),
        }
    }
}

/// Resident bytes of a process; `None` when it is gone.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: sysconf reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.checked_mul(u64::try_from(page).ok()?)
}

/// Our ends of a child's stdin and stdout.
pub struct Pipes {
    /// `None` once the child stopped reading.
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// Bytes read past the end of a line: `ahead[at..]` are still to be given out.
    ahead: Vec<u8>,
    at: usize,
    memory_checked: Instant,
}

impl Pipes {
    pub fn new(stdin: ChildStdin, stdout: ChildStdout) -> io::Result<Self> {
        for fd in [stdin.as_raw_fd(), stdout.as_raw_fd()] {
            set_non_blocking(fd)?;
            // SAFETY: the descriptor is open; a refusal leaves the pipe as it was.
            unsafe { libc::fcntl(fd, libc::F_SETPIPE_SZ, PIPE_BYTES) };
        }
        Ok(Self { stdin: Some(stdin), stdout, ahead: Vec::new(), at: 0, memory_checked: Instant::now() })
    }

    /// False once the child stopped reading: it can get no further block.
    pub fn is_open(&self) -> bool {
        self.stdin.is_some()
    }

    /// Bytes that came after the answer and belong to nothing.
    pub fn left_over(&self) -> &[u8] {
        &self.ahead[self.at..]
    }

    /// The first bytes of what came and nobody asked for, once the child is gone.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = self.left_over().to_vec();
        let mut part = [0; 1024];
        if let Ok(n) = self.stdout.read(&mut part) {
            rest.extend_from_slice(&part[..n]);
        }
        rest
    }

    /// Closing stdin asks the child to end.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The next line without its end. Never holds more than [`LINE_BYTES`] and one read.
    pub fn line(&mut self, feed: &mut Feed<'_>, watch: &Watch<'_>) -> Result<Vec<u8>, Cut> {
        let mut line = Vec::new();
        loop {
            let rest = &self.ahead[self.at..];
            let end = rest.iter().position(|b| *b == b'\n');
            line.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
            if line.len() > LINE_BYTES {
                line.truncate(STAGE_BYTES);
                return Err(Cut::LongLine(line));
            }
            if let Some(end) = end {
                self.at += end + 1;
                return Ok(line);
            }
            let mut ahead = std::mem::take(&mut self.ahead);
            ahead.resize(STAGE_BYTES, 0);
            let read = self.read(&mut ahead, feed, watch);
            ahead.truncate(read.as_ref().copied().unwrap_or(0));
            (self.ahead, self.at) = (ahead, 0);
            match read {
                // What a child says in its last breath without ending the line is worth showing.
                Err(Cut::Closed) if !line.is_empty() => return Ok(line),
                other => other?,
            };
        }
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8], feed: &mut Feed<'_>, watch: &Watch<'_>) -> Result<(), Cut> {
        let ready = out.len().min(self.ahead.len() - self.at);
        out[..ready].copy_from_slice(&self.ahead[self.at..self.at + ready]);
        self.at += ready;
        let mut done = ready;
        while done < out.len() {
            done += self.read(&mut out[done..], feed, watch)?;
        }
        Ok(())
    }

    /// Reads `bytes` bytes and forgets them.
    pub fn skip(&mut self, bytes: usize, feed: &mut Feed<'_>, watch: &Watch<'_>) -> Result<(), Cut> {
        let mut void = vec![0; bytes.min(STAGE_BYTES)];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(void.len());
            self.fill(&mut void[..part], feed, watch)?;
            left -= part;
        }
        Ok(())
    }

    /// Sends what is left of `feed`.
    pub fn flush(&mut self, feed: &mut Feed<'_>, watch: &Watch<'_>) -> Result<(), Cut> {
        while self.is_open() && !feed.pending().is_empty() {
            let (_, writable) = self.wait(false, true, watch)?;
            if writable {
                self.write(feed)?;
            }
        }
        Ok(())
    }

    /// Reads at least one byte, feeding the child meanwhile.
    fn read(&mut self, out: &mut [u8], feed: &mut Feed<'_>, watch: &Watch<'_>) -> Result<usize, Cut> {
        loop {
            let sending = self.is_open() && !feed.pending().is_empty();
            let (readable, writable) = self.wait(true, sending, watch)?;
            if writable {
                self.write(feed)?;
            }
            if readable {
                match self.stdout.read(out) {
                    Ok(0) => return Err(Cut::Closed),
                    Ok(n) => return Ok(n),
                    Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    Err(e) => return Err(Cut::Failed(e)),
                }
            }
        }
    }

    fn write(&mut self, feed: &mut Feed<'_>) -> Result<(), Cut> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        match stdin.write(feed.pending()) {
            Ok(n) => feed.advance(n),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // The child stopped reading. What it still has to say comes on stdout: an error, or the end.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => self.stdin = None,
            Err(e) => return Err(Cut::Failed(e)),
        }
        Ok(())
    }

    /// Waits until the child can be read from or written to.
    fn wait(&mut self, reading: bool, writing: bool, watch: &Watch<'_>) -> Result<(bool, bool), Cut> {
        let write_fd = self.stdin.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        loop {
            if watch.stop.load(Ordering::Relaxed) {
                return Err(Cut::Stopped);
            }
            let left = watch.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Cut::TimedOut);
            }
            if self.memory_checked.elapsed() >= MEMORY_TICK {
                self.memory_checked = Instant::now();
                watch.check_memory()?;
            }
            // poll passes over negative descriptors.
            let mut fds = [
                libc::pollfd { fd: if reading { self.stdout.as_raw_fd() } else { -1 }, events: libc::POLLIN, revents: 0 },
                libc::pollfd { fd: if writing { write_fd } else { -1 }, events: libc::POLLOUT, revents: 0 },
            ];
            let millis = TICK.min(left).as_millis().max(1) as libc::c_int;
            // SAFETY: `fds` is an array of two initialised entries.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, millis) };
            if ready < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != ErrorKind::Interrupted {
                    return Err(Cut::Failed(error));
                }
            } else if ready > 0 {
                // A hang-up counts as ready: the read or write that follows says which end it is.
                return Ok((fds[0].revents != 0, fds[1].revents != 0));
            }
        }
    }
}

fn set_non_blocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open and ours; the child's end has flags of its own.
    let failed = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What is to be sent: a line, then the bytes of blocks in C order.
pub struct Feed<'a> {
    staged: Vec<u8>,
    /// A run long enough to be written from where it lies; stands before `staged`.
    direct: Option<&'a [u8]>,
    sent: usize,
    blocks: Vec<&'a Block>,
    next: usize,
    runs: Option<Runs<'a>>,
}

impl<'a> Feed<'a> {
    pub fn new(mut line: Vec<u8>, blocks: Vec<&'a Block>) -> Self {
        line.push(b'\n');
        Self { staged: line, direct: None, sent: 0, blocks, next: 0, runs: None }
    }

    /// The next bytes to send; empty when all are sent.
    fn pending(&mut self) -> &[u8] {
        if self.sent >= self.direct.map_or(self.staged.len(), <[u8]>::len) {
            self.refill();
        }
        &self.direct.unwrap_or(&self.staged)[self.sent..]
    }

    fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    fn refill(&mut self) {
        (self.sent, self.direct) = (0, None);
        self.staged.clear();
        while self.staged.is_empty() {
            let Some(runs) = &mut self.runs else {
                let Some(block) = self.blocks.get(self.next) else { return };
                self.next += 1;
                self.runs = Some(Runs::new(block));
                continue;
            };
            if runs.run >= STAGE_BYTES {
                self.direct = runs.next();
                if self.direct.is_some() {
                    return;
                }
            }
            while self.staged.len() < STAGE_BYTES {
                match runs.next() {
                    Some(run) => self.staged.extend_from_slice(run),
                    None => {
                        self.runs = None;
                        break;
                    }
                }
            }
        }
    }
}

/// The bytes of a strided block in C order, as the longest runs that lie together.
struct Runs<'a> {
    data: &'a [u8],
    at: isize,
    /// Bytes per run.
    run: usize,
    left: usize,
    /// Length and stride of the axes outside a run, first axis first.
    axes: Vec<(usize, isize)>,
    index: Vec<usize>,
}

impl<'a> Runs<'a> {
    fn new(block: &'a Block) -> Self {
        let (data, at) = block.raw();
        let mut run = block.dtype().size();
        let mut outer: Vec<(usize, isize)> =
            block.shape().iter().copied().zip(block.strides().iter().copied()).filter(|(n, _)| *n != 1).collect();
        while let Some(&(n, stride)) = outer.last() {
            if stride != run as isize {
                break;
            }
            run *= n;
            outer.pop();
        }
        let left = if block.count() == 0 { 0 } else { outer.iter().map(|(n, _)| n).product() };
        Self { data, at, run, left, index: vec![0; outer.len()], axes: outer }
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let from = self.at as usize;
        let run = &self.data[from..from + self.run];
        for axis in (0..self.axes.len()).rev() {
            let (n, stride) = self.axes[axis];
            self.index[axis] += 1;
            self.at += stride;
            if self.index[axis] < n {
                break;
            }
            self.at -= stride * n as isize;
            self.index[axis] = 0;
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(block: &Block) -> Vec<u8> {
        let mut feed = Feed::new(b"head".to_vec(), vec![block]);
        let mut all = Vec::new();
        loop {
            let part = feed.pending();
            // An uneven step, as a pipe takes what it has room for.
            let n = part.len().min(1000);
            if n == 0 {
                break;
            }
            all.extend_from_slice(&part[..n]);
            feed.advance(n);
        }
        all.split_off(b"head\n".len())
    }

    #[test]
    fn feeds_send_views_in_c_order() {
        let values: Vec<i32> = (0..40 * 50 * 60).collect();
        let block = Block::from_values(&[40, 50, 60], &values);
        let views = [
            block.clone(),
            block.view(&[1, 2, 3], &[39, 49, 58]),
            block.view(&[3, 0, 0], &[30, 50, 60]),
            block.view(&[3, 7, 0], &[3, 9, 60]),
            block.view(&[0, 7, 5], &[40, 8, 6]),
            block.transposed(&[2, 0, 1]),
        ];
        for view in views {
            let mut want = vec![0; view.byte_len()];
            view.copy_to(&mut want);
            assert!(sent(&view) == want, "shape {:?} strides {:?}", view.shape(), view.strides());
        }
    }

    #[test]
    fn whole_rows_are_sent_from_where_they_lie() {
        let block = Block::from_values(&[4, 100_000], &vec![7u8; 400_000]);
        let runs = Runs::new(&block);
        assert_eq!((runs.run, runs.left), (400_000, 1));
        let view = block.view(&[0, 1], &[4, 100_000]);
        let runs = Runs::new(&view);
        assert_eq!((runs.run, runs.left), (99_999, 4));
    }

    #[test]
    fn our_own_memory_is_seen() {
        assert!(resident_bytes(std::process::id()).is_some_and(|b| b > 100_000));
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}
