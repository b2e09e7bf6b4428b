//! What operators do to blocks: maps, the same on a device, folds; and the memory that they get for one block.

use std::sync::atomic::AtomicBool;

use crate::array::block::c_strides;
use crate::array::budget::BudgetError;
use crate::array::{Block, Buffer, Dims, Lease, Region};
use crate::compute::gpu::fleet::Fleet;
use crate::compute::gpu::job::Job;

/// Why an operator could not do a block. The engine adds step, block and region.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The data or the user's function is at fault: final.
    #[error("{0}")]
    Data(String),
    /// Somebody it works with died or was too slow: another run may do better.
    #[error("{0}")]
    Passing(String),
    #[error(transparent)]
    Budget(#[from] BudgetError),
}

impl OperatorError {
    pub fn data(text: impl Into<String>) -> Self {
        Self::Data(text.into())
    }
}

/// An input of a block, with its halo: `block` covers `region`, which may leave the array where the boundary rule has
/// filled cells.
#[derive(Clone, Debug)]
pub struct Padded {
    pub region: Region,
    pub block: Block,
}

/// What one call of a map operator is to produce.
pub struct MapTask<'a> {
    /// Number of the block in the block grid.
    pub number: u64,
    /// The part of the reference input's axes that is computed (no halo). The block's core, or for a step inside a chain
    /// the core grown by what later steps need.
    pub core: &'a Region,
    /// Per output: the region of it that is needed.
    pub outputs: &'a [Region],
    /// Per output: whether anybody asked for it.
    pub wanted: &'a [bool],
    /// Which worker calls: operators that keep state per worker (a child process) key it by this.
    pub worker: usize,
}

/// A computed output: `region` is `MapTask::outputs[i]`, or contains it when the operator returns its halo (trim cuts it).
#[derive(Debug)]
pub struct Computed {
    pub region: Region,
    pub block: Block,
}

/// Block in, block(s) out.
pub trait MapOperator: Send + Sync {
    /// One entry per output, `None` for those not wanted. Must give the same bytes however the array is cut.
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError>;

    /// Working memory beside inputs and outputs for a core of this shape (reference axes), in bytes.
    fn scratch_bytes(&self, core: &[u64]) -> u64;

    /// True when an output may be its input's own buffer, so that the plan need not count a second one.
    fn passes_through(&self) -> bool {
        false
    }

    /// True when outputs come back with the halo of their input, for trim to cut off.
    fn returns_halo(&self) -> bool {
        false
    }

    /// True when it is less work than reading its input: a block is not handed to another thread for it.
    fn is_light(&self) -> bool {
        false
    }

    /// The same strip by strip; `None` where it takes whole blocks.
    fn sweep(&self) -> Option<&dyn Sweep> {
        None
    }

    /// Called once per worker when a phase ends or fails: close what `apply` opened for it.
    fn close(&self, _worker: usize) {}

    /// The same on a device; `None`: there is no CUDA kernel for it.
    fn device(&self) -> Option<&dyn DeviceMap> {
        None
    }
}

/// A map with one input and one output of its shape that goes through a block in strips along an axis. What strips have in common
/// stays in a window that moves along with them, so a block's cells are asked for once, a strip's at a time, and neither its
/// input nor its result is ever held as a whole. Gives the bytes that [`MapOperator::apply`] gives.
pub trait Sweep: Send + Sync {
    /// Strips follow each other along this axis.
    fn axis(&self) -> usize;

    /// Parts of the input along this axis are taken together: lines through all of them are.
    fn joined(&self) -> Option<usize>;

    /// The part of the input that belongs to a core.
    fn needs(&self, core: &Region) -> Region;

    /// Rows of a strip of a core with so many, whose slabs are written one by one.
    fn rows(&self, core: u64) -> u64;

    /// Rows of the input that are asked for at a time, at most.
    fn taken(&self) -> u64;

    /// Memory for a core of this shape, in bytes. `is_stored`: slabs are written one by one.
    fn bytes(&self, core: &[u64], is_stored: bool) -> u64;

    fn begin<'s>(
        &'s self,
        core: &Region,
        is_stored: bool,
        work: &mut Workspace<'_>,
    ) -> Result<Box<dyn Strips + 's>, OperatorError>;
}

/// The strips of a block, one after the other: [`Strips::next`], [`Strips::take`] until all that it names is there, [`Strips::slab`]
/// until there is none; and again, as a strip may ask for what it needs in portions.
pub trait Strips {
    /// What is needed next of the input, beyond what there is; `None` when the block is done.
    fn next(&mut self) -> Option<Region>;

    /// Takes parts of that which lie behind each other along [`Sweep::joined`].
    fn take(&mut self, parts: &[Stretch<'_>]);

    /// The next part of the strip's results, in C order; `None` when there is none left.
    fn slab(&mut self) -> Option<(Region, &[u8])>;
}

/// Cells of an input, among them perhaps some that are not asked for.
pub struct Stretch<'a> {
    pub region: Region,
    pub bytes: &'a [u8],
    /// Where the region's first cell lies in `bytes`, and how far apart those behind it lie, in bytes.
    pub offset: isize,
    pub strides: Dims<isize>,
}

impl<'a> Stretch<'a> {
    /// Cells of this size that lie in C order.
    pub fn in_order(region: Region, bytes: &'a [u8], size: usize) -> Self {
        let strides = c_strides(&region.shape(), size);
        Self { region, bytes, offset: 0, strides }
    }

    pub fn of(region: Region, block: &'a Block) -> Self {
        let (bytes, offset) = block.raw();
        Self { region, bytes, offset, strides: block.strides().into() }
    }
}

/// What a map operator does on a device, for a part of a block at a time. Its kernels lie beside its code and are listed in
/// [`KERNELS`](crate::compute::gpu::kernels::KERNELS). All of it runs on the workers; actors see the job only.
pub trait DeviceMap: Send + Sync {
    /// True when the device gives the bytes that the CPU gives (I9): then parts of one job may be computed on either.
    fn is_exact(&self) -> bool;

    /// True when its arithmetic is worth the way to a device and back: `devices = "auto"` takes no other step there.
    fn pays(&self) -> bool {
        true
    }

    /// The regions of the inputs that a part needs, out of those given for the block.
    fn needs(&self, given: &[Region], part: &Region) -> Vec<Region>;

    /// The work for a part (reference axes). Input buffers of the job are these regions in C order. `None` where numbers
    /// leave what a kernel takes: a smaller part is asked for then.
    fn job(&self, needs: &[Region], part: &Region) -> Option<Job>;

    /// Two halves of a part, `None` below the smallest.
    fn split(&self, part: &Region) -> Option<[Region; 2]>;

    /// Writes a part of the outputs (whole buffers of the block, as in `task`) from what came back: `staging` as the job
    /// lays it out.
    fn finish(
        &self,
        part: &DevicePart<'_>,
        staging: &[u8],
        task: &MapTask<'_>,
        outputs: &mut [Option<Buffer>],
        work: &mut Workspace<'_>,
    ) -> Result<(), OperatorError>;

    /// Memory that `finish` takes, in bytes.
    fn scratch_bytes(&self) -> u64;
}

/// A part of a block that a device has computed.
pub struct DevicePart<'a> {
    pub core: &'a Region,
    /// What [`DeviceMap::needs`] gave.
    pub needs: &'a [Region],
    pub job: &'a Job,
}

/// Partial, merge, finish along axes. Leaves lie on a constant grid in array coordinates and are combined in a fixed
/// binary tree (I1), unless the operator is exact in any order.
pub trait FoldOperator: Send + Sync {
    /// Bytes of state per kept cell.
    fn state_bytes(&self) -> usize;

    /// True when merging in any order and grouping gives the same state: then leaves follow the blocks.
    fn is_order_free(&self) -> bool;

    /// True when adding a block is less work than reading it: then the thread that has read it does that.
    fn is_light(&self) -> bool {
        false
    }

    /// The state of one leaf. Inputs are contiguous or strided and cut to the leaf on the axes that follow the
    /// reference; reduced axes are as in the binding. The state is laid out in C order over the kept axes; it arrives
    /// zeroed, aligned like every buffer, with `state_bytes` per kept cell.
    fn leaf(&self, inputs: &[Padded], axes: &[usize], state: &mut [u8]) -> Result<(), OperatorError>;

    /// `into` (the earlier leaves) and `other` (the later ones) become one.
    fn merge(&self, into: &mut [u8], other: &[u8]) -> Result<(), OperatorError>;

    /// The values of the outputs from the state of the whole array; `count` is the number of cells each kept cell
    /// reduced. One buffer per output, C order over the output's axes: the kept ones, and whole new ones.
    fn finish(&self, state: &[u8], count: u64, outputs: &mut [&mut [u8]]) -> Result<(), OperatorError>;
}

/// Memory for one block: buffers cut off a lease that the worker took before it began.
pub struct Workspace<'a> {
    lease: Lease,
    pub stop: &'a AtomicBool,
    /// The devices of the run, for steps that have kernels.
    pub fleet: Option<&'a Fleet>,
}

impl<'a> Workspace<'a> {
    pub fn new(lease: Lease, stop: &'a AtomicBool) -> Self {
        Self { lease, stop, fleet: None }
    }

    /// A workspace without a bound, for tests.
    pub fn unbounded(stop: &'a AtomicBool) -> Self {
        let lease = crate::array::Account::unbounded("test").try_lease(1 << 60).expect("unbounded");
        Self { lease, stop, fleet: None }
    }

    /// A buffer to fill. Its bytes count against what the operator announced; what earlier buffers gave back may be
    /// taken again.
    pub fn buffer(&mut self, bytes: usize) -> Result<Buffer, BudgetError> {
        // Only what is missing is asked for: a worker that kept the rest of its lease aside would wait for itself.
        if let Some(missing) = (bytes as u64).checked_sub(self.lease.bytes()).filter(|m| *m > 0) {
            let more = self.lease.account().lease(missing, self.stop)?;
            self.lease.join(more);
        }
        Buffer::from_lease(&mut self.lease, bytes)
    }

    /// Bytes of the lease for memory that is not a [`Buffer`]; asks for more only where too little is left.
    pub fn reserve(&mut self, bytes: u64) -> Result<Lease, BudgetError> {
        if let Some(missing) = bytes.checked_sub(self.lease.bytes()).filter(|m| *m > 0) {
            let more = self.lease.account().lease(missing, self.stop)?;
            self.lease.join(more);
        }
        self.lease.split(bytes)
    }

    /// What is left of the lease.
    pub fn left(&self) -> u64 {
        self.lease.bytes()
    }
}
