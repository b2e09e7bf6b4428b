//! Work for a device as plain data: what goes up, what is launched, what comes back.

use std::fmt::Write;

use super::Memory;
use super::kernels::Kernel;

/// A kernel file with the defines of one variant. Two programs with equal text are the same.
#[derive(Clone, Debug)]
pub struct Program {
    pub kernel: &'static Kernel,
    pub defines: Vec<(&'static str, String)>,
}

/// Multiplication and addition stay apart, as on the CPU; C++17 like the compiler of the tests.
pub const OPTIONS: [&str; 2] = ["--fmad=false", "--std=c++17"];

impl Program {
    /// The text to compile: defines, the common helpers, the kernel's file.
    pub fn source(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.defines {
            let _ = writeln!(text, "#define {name} {value}");
        }
        text + include_str!("../../operators/common.cuh") + self.kernel.source
    }

    /// `ks_test IMAGES=17 DTYPE=10`: for messages, and to tell programs apart.
    pub fn label(&self) -> String {
        let mut text = self.kernel.name.to_owned();
        for (name, value) in &self.defines {
            let _ = write!(text, " {name}={value}");
        }
        text
    }
}

/// An argument of a kernel; the kernel's parameter has exactly this type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A pointer to a buffer of the job.
    Buffer(usize),
    I32(i32),
    I64(i64),
    F64(f64),
}

impl Arg {
    /// The argument's bytes in the low end of a word, as little endian machines lay them out.
    pub fn bits(&self, buffers: &[Memory]) -> u64 {
        match *self {
            Arg::Buffer(n) => buffers[n].0,
            Arg::I32(v) => v as u32 as u64,
            Arg::I64(v) => v as u64,
            Arg::F64(v) => v.to_bits(),
        }
    }
}

/// One kernel launch: a one-dimensional grid of one-dimensional blocks.
#[derive(Clone, Debug)]
pub struct Launch {
    pub entry: &'static str,
    pub blocks: u32,
    pub threads: u32,
    pub args: Vec<Arg>,
}

/// Buffers are numbered: inputs, then outputs, then scratch.
#[derive(Clone, Debug)]
pub struct Job {
    pub program: Program,
    /// Bytes of each buffer that is uploaded.
    pub inputs: Vec<usize>,
    /// Bytes of each buffer that is brought back.
    pub outputs: Vec<usize>,
    pub scratch: Vec<usize>,
    pub launches: Vec<Launch>,
}

/// Buffers on the device and parts of staging begin at multiples of this.
const ALIGN: usize = 256;

/// Bytes that a buffer takes: whole units of [`ALIGN`], one at least.
pub fn rounded(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(ALIGN)
}

impl Job {
    /// Bytes of all buffers on the device, each as [`rounded`].
    pub fn device_bytes(&self) -> u64 {
        self.sizes().map(|n| rounded(n) as u64).sum()
    }

    /// Buffer by buffer, in the order of their numbers.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().chain(&self.outputs).chain(&self.scratch).copied()
    }

    /// Bytes of host memory: inputs, then outputs.
    pub fn staging_bytes(&self) -> usize {
        self.inputs.iter().chain(&self.outputs).map(|n| rounded(*n)).sum()
    }

    /// Where an input or output lies in the staging.
    pub fn staged(&self, buffer: usize) -> std::ops::Range<usize> {
        let mut sizes = self.inputs.iter().chain(&self.outputs);
        let start = sizes.by_ref().take(buffer).map(|n| rounded(*n)).sum();
        start..start + sizes.next().copied().unwrap_or(0)
    }
}
