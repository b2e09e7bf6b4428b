//! Every kernel file: what the tests compile and run, and what the cache of compiled kernels is keyed by.

use super::job::Program;

/// A file of CUDA C beside the code it belongs to.
#[derive(Debug)]
pub struct Kernel {
    pub name: &'static str,
    pub source: &'static str,
    /// Its `KERNEL`s.
    pub entries: &'static [&'static str],
    /// The variants that the tests compile: every branch of the file is in one of them.
    pub variants: fn() -> Vec<Variant>,
}

/// A kernel file with defines.
#[derive(Debug)]
pub struct Variant {
    pub defines: Vec<(&'static str, String)>,
    /// Spilled registers are an error: this is what the time goes into.
    pub is_hot: bool,
}

/// Every kernel. Keep sorted by name.
pub static KERNELS: &[&Kernel] =
    &[&crate::operators::amplitude::KERNEL, &crate::codec::bitpack::KERNEL, &crate::operators::ks_test::device::KERNEL];

impl Kernel {
    pub fn program(&'static self, defines: Vec<(&'static str, String)>) -> Program {
        Program { kernel: self, defines }
    }

    /// The programs of all variants, and whether each is hot.
    pub fn programs(&'static self) -> Vec<(Program, bool)> {
        (self.variants)().into_iter().map(|v| (self.program(v.defines), v.is_hot)).collect()
    }
}
