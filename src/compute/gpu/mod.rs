//! Compute on devices: kernels, the actors that feed devices, and the way of a block there and back.
//!
//! ```text
//! worker: fill staging -> fleet's queue -> actor of a free device: upload, kernels, download -> worker: read staging
//! ```
//! Workers (`compute::work`) stay what they are: each evaluates the steps of one block. Where a step has kernels
//! ([`DeviceMap`](crate::operators::DeviceMap)) its worker cuts the block into parts that fit, writes their inputs into
//! pinned staging and hands them to the [`Fleet`](fleet::Fleet), whose one queue feeds one actor (and thread) per device:
//! parts go to whichever device is free. An actor keeps several parts in flight on three queues of its device, so that the
//! upload of one, the kernels of another and the download of a third overlap.
//!
//! Between actors and CUDA stands [`Device`]: `cuda` is the real one, the tests have one that runs kernels on the CPU and
//! one that plays out of memory, slow or lost.

pub mod actor;
pub mod apply;
pub mod cache;
pub mod cuda;
#[cfg(test)]
mod fake;
pub mod fleet;
#[cfg(test)]
mod fleet_tests;
pub mod job;
pub mod kernels;
pub mod nvrtc;
pub mod pinning;
pub mod pulse;
#[cfg(test)]
pub mod shim;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub use tests::{cuda as test_gpu, devices as test_devices};

use super::device::{Arch, DeviceInfo};
use job::{Launch, Program};

/// Why a device could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// It has no room for so many bytes now.
    #[error("out of device memory, {0} bytes asked")]
    OutOfMemory(u64),
    /// It will not answer again in this process.
    #[error("lost: {0}")]
    Lost(String),
    /// It works, this request does not: a kernel that does not compile, a wrong argument.
    #[error("{0}")]
    Failed(String),
}

/// The queues of a device: work on one follows its order, work on different ones overlaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    Upload,
    Compute,
    Download,
}

/// Memory on a device, as the device names it (CUDA: the pointer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Memory(pub u64);

/// A point on a queue, passed when everything before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark(pub u64);

/// A device as its actor sees it; every call but the last two returns at once. Called by one thread.
pub trait Device: Send {
    /// Makes a program ready: compiled and loaded, once. `Failed`: the device will never run it.
    fn prepare(&mut self, program: &Program) -> Result<(), DeviceError>;

    fn alloc(&mut self, bytes: usize) -> Result<Memory, DeviceError>;

    fn free(&mut self, memory: Memory);

    /// # Safety
    /// `from` must not be written or freed, `to` not freed, before a later mark on the upload queue is passed.
    unsafe fn upload(&mut self, from: &[u8], to: Memory) -> Result<(), DeviceError>;

    /// # Safety
    /// The arguments must be those of the entry point, and buffers as long as it reads and writes.
    unsafe fn launch(&mut self, program: &Program, launch: &Launch, buffers: &[Memory]) -> Result<(), DeviceError>;

    /// # Safety
    /// `to` must not be touched or freed, `from` not freed, before a later mark on the download queue is passed.
    unsafe fn download(&mut self, from: Memory, to: &mut [u8]) -> Result<(), DeviceError>;

    /// A mark behind all that was put on the queue so far.
    fn mark(&mut self, queue: Queue) -> Result<Mark, DeviceError>;

    /// What comes on the queue from now on waits for the mark.
    fn wait(&mut self, queue: Queue, mark: Mark) -> Result<(), DeviceError>;

    /// Whether a mark is passed. A mark that was is forgotten.
    fn is_passed(&mut self, mark: Mark) -> Result<bool, DeviceError>;

    /// Waits until nothing is under way that touches host memory; what fails is as good as over.
    fn quiesce(&mut self);
}

/// The devices of a machine.
pub trait Hardware: Send + Sync {
    fn devices(&self) -> Result<Vec<DeviceInfo>, String>;

    /// The oldest architecture that kernels can be compiled for; the error says what to install.
    fn compiler(&self) -> Result<Arch, String>;

    /// A device, and the bytes free on it where it knows. Called on the thread that will use it.
    fn open(&self, info: &DeviceInfo) -> Result<(Box<dyn Device>, Option<u64>), DeviceError>;

    /// Called on the thread that will use it.
    fn pinner(&self, devices: &[DeviceInfo]) -> Option<Box<dyn Pinner>>;
}

/// Makes host memory that devices copy fast from and to.
pub trait Pinner {
    fn pin(&self, bytes: usize) -> Option<Box<dyn HostMemory>>;
}

/// Host memory of a fixed place and length.
pub trait HostMemory: Send {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Ordinary memory: where nothing can be pinned, copies are slower, not wrong.
impl HostMemory for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}
