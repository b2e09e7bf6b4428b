//! What is said to a child and what may be answered: a line of JSON each way, then the bytes of blocks. Knows nothing of
//! processes, so that anything can stand for the child. Costs what the pipes cost.

use std::io;
use std::ops::DerefMut;
use std::process::{ChildStdin, ChildStdout};

use serde::Deserialize;
use serde_json::{Value, json};

use super::pipe::{Cut, Feed, Pipes, Watch};
use crate::array::{Block, Buffer, DType};

/// Bytes of an answer that is no answer shown in the message.
const SHOWN_BYTES: usize = 200;

/// One output as it must come back, and where its bytes go (`None`: nobody wants them).
pub struct Slot<B = Buffer> {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: usize,
    pub buffer: Option<B>,
}

/// Why a talk ended early.
#[derive(Debug)]
pub enum Trouble {
    Cut(Cut),
    /// The answer is wrong, or says that the function failed.
    Wrong(String),
}

impl From<Cut> for Trouble {
    fn from(cut: Cut) -> Self {
        Self::Cut(cut)
    }
}

/// A talk with one child.
pub struct Dialogue {
    pipes: Pipes,
    /// For messages: `python3 myop.py`.
    command: String,
}

/// Everything a child may say in a line.
#[derive(Deserialize)]
struct Answer {
    block: Option<u64>,
    ready: Option<bool>,
    error: Option<String>,
    outputs: Option<Vec<AnsweredOutput>>,
}

#[derive(Deserialize)]
struct AnsweredOutput {
    shape: Vec<u64>,
    dtype: String,
}

impl Dialogue {
    pub fn new(stdin: ChildStdin, stdout: ChildStdout, command: String) -> io::Result<Self> {
        Ok(Self { pipes: Pipes::new(stdin, stdout)?, command })
    }

    pub fn command(&self) -> &str {
        &self.command
    }

    /// False once the child stopped reading: it can get no further block.
    pub fn is_open(&self) -> bool {
        self.pipes.is_open()
    }

    /// Asks the child to end.
    pub fn close_stdin(&mut self) {
        self.pipes.close_stdin();
    }

    /// The first bytes of what came and nobody asked for, once the child is gone.
    pub fn rest(&mut self) -> Vec<u8> {
        self.pipes.rest()
    }

    /// The first line each way: the child must say that it is ready.
    pub fn greet(&mut self, params: &Value, watch: &Watch<'_>) -> Result<(), Trouble> {
        let hello = json!({"halostream": 1, "params": params});
        let mut feed = Feed::new(hello.to_string().into_bytes(), Vec::new());
        match self.read_answer(&mut feed, watch)? {
            Answer { error: Some(error), .. } => Err(Trouble::Wrong(format!("`{}` refused to start: {error}", self.command))),
            Answer { ready: Some(true), .. } => Ok(()),
            _ => Err(Trouble::Wrong(format!("`{}` did not answer {{\"ready\":true}} to the first line", self.command))),
        }
    }

    /// One block: `request` is the header, the bytes of `blocks` follow; fills the buffers of `slots`.
    pub fn ask<B: DerefMut<Target = [u8]>>(
        &mut self,
        number: u64,
        request: &Value,
        blocks: Vec<&Block>,
        slots: &mut [Slot<B>],
        watch: &Watch<'_>,
    ) -> Result<(), Trouble> {
        let mut feed = Feed::new(request.to_string().into_bytes(), blocks);
        let answer = self.read_answer(&mut feed, watch)?;
        if answer.block != Some(number) {
            let found = answer.block.map_or("no block number".to_owned(), |n| format!("block {n}"));
            let error = answer.error.map(|e| format!(": {e}")).unwrap_or_default();
            return Err(Trouble::Wrong(self.wrong(&format!("answered {found}, expected block {number}{error}"))));
        }
        if let Some(error) = answer.error {
            return Err(Trouble::Wrong(format!("the user function failed: {error}")));
        }
        let Some(outputs) = answer.outputs else {
            return Err(Trouble::Wrong(self.wrong("answered neither outputs nor an error")));
        };
        check(&outputs, slots).map_err(Trouble::Wrong)?;
        for slot in slots.iter_mut() {
            match &mut slot.buffer {
                Some(buffer) => self.pipes.fill(&mut buffer[..slot.bytes], &mut feed, watch)?,
                None => self.pipes.skip(slot.bytes, &mut feed, watch)?,
            }
        }
        self.pipes.flush(&mut feed, watch)?;
        if !self.pipes.left_over().is_empty() {
            let text = format!("sent {} after its answer", shown(self.pipes.left_over()));
            return Err(Trouble::Wrong(self.wrong(&text)));
        }
        Ok(watch.check_memory()?)
    }

    /// A message for what breaks the protocol.
    pub fn wrong(&self, what: &str) -> String {
        format!("`{}` {what}; stdout belongs to the protocol, a program prints to stderr", self.command)
    }

    fn read_answer(&mut self, feed: &mut Feed<'_>, watch: &Watch<'_>) -> Result<Answer, Trouble> {
        let line = self.pipes.line(feed, watch)?;
        serde_json::from_slice(&line)
            .map_err(|e| Trouble::Wrong(self.wrong(&format!("sent {} where a line of JSON was due ({e})", shown(&line)))))
    }
}

/// Compares an answer with what was declared, before anything is read by it.
fn check<B>(found: &[AnsweredOutput], slots: &[Slot<B>]) -> Result<(), String> {
    if found.len() != slots.len() {
        return Err(format!("the user function returned {} outputs, expected {}", found.len(), slots.len()));
    }
    for (found, slot) in found.iter().zip(slots) {
        let mut wrong = Vec::new();
        if !found.shape.iter().copied().eq(slot.shape.iter().map(|&n| n as u64)) {
            let (shown, more) = (&found.shape[..found.shape.len().min(16)], if found.shape.len() > 16 { ", ..." } else { "" });
            wrong.push(format!("shape {shown:?}{more}, expected {:?}", slot.shape));
        }
        if DType::parse(&found.dtype) != Some(slot.dtype) {
            let text = shown(found.dtype.as_bytes());
            let name = DType::parse(&found.dtype).map(|d| format!(" ({d})")).unwrap_or_default();
            wrong.push(format!("dtype {text}{name}, expected {:?} ({})", slot.dtype.typestr(), slot.dtype));
        }
        if !wrong.is_empty() {
            return Err(format!("the user function returned `{}` with {}", slot.name, wrong.join(" and ")));
        }
    }
    Ok(())
}

/// The first bytes of something unexpected, in quotes.
pub fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES)]);
    format!("{text:?}{}", if bytes.len() > SHOWN_BYTES { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_compared_before_it_is_read() {
        let slot: Slot = Slot { name: "a".into(), dtype: DType::F64, shape: vec![12, 12], bytes: 1152, buffer: None };
        let answer = |shape: &[u64], dtype: &str| [AnsweredOutput { shape: shape.to_vec(), dtype: dtype.into() }];
        let slots = [slot];
        assert_eq!(check(&answer(&[12, 12], "<f8"), &slots), Ok(()));
        let error = check(&answer(&[3, 10], "<f8"), &slots).unwrap_err();
        assert!(error.contains("shape [3, 10], expected [12, 12]"), "{error}");
        let error = check(&answer(&[12, 12], "<f4"), &slots).unwrap_err();
        assert!(error.contains("dtype \"<f4\" (float32), expected \"<f8\" (float64)"), "{error}");
        assert!(check(&answer(&[u64::MAX; 1000], ">f8"), &slots).unwrap_err().len() < 600);
        assert!(check(&[], &slots).unwrap_err().contains("returned 0 outputs, expected 1"));
    }
}
