//! A CUDA device: its primary context, three streams, events as marks, modules by program.
//!
//! Every call binds the context to its thread first: pinned memory that an actor lets go binds the context that it was made
//! in, which may be another device's. Streams do not wait for the default stream, and the library's own tracking of slices by
//! events is off: queues are put in order by marks alone. What is dropped goes before the context, which each part holds; the
//! driver ends a primary context when the last of its holders in this process is gone.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUresult as Code;
use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaStream, LaunchConfig, PinnedHostSlice, PushKernelArg};
use cudarc::nvrtc::Ptx;

use super::job::{Launch, Program};
use super::{Device, DeviceError, Hardware, HostMemory, Mark, Memory, Pinner, Queue, cache, nvrtc};
use crate::compute::device::{self, Arch, DeviceInfo};

/// Pinned for all contexts, not for the one that it was made in.
const PORTABLE: u32 = 1;

pub struct CudaDevice {
    info: DeviceInfo,
    context: Arc<CudaContext>,
    streams: [Arc<CudaStream>; 3],
    programs: HashMap<String, HashMap<&'static str, CudaFunction>>,
    /// Recorded and not yet passed, by number.
    marks: HashMap<u64, CudaEvent>,
    idle_events: Vec<CudaEvent>,
    marked: u64,
    cache: Option<PathBuf>,
}

fn failed(error: DriverError) -> DeviceError {
    match error.0 {
        Code::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory(0),
        // Requests that were wrong, on a context that still works.
        Code::CUDA_ERROR_INVALID_VALUE
        | Code::CUDA_ERROR_INVALID_IMAGE
        | Code::CUDA_ERROR_INVALID_PTX
        | Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | Code::CUDA_ERROR_NO_BINARY_FOR_GPU
        | Code::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
        | Code::CUDA_ERROR_NOT_FOUND
        | Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => DeviceError::Failed(format!("{:?}", error.0)),
        // Everything else leaves a context that answers all calls with the same error.
        code => DeviceError::Lost(format!("{code:?}")),
    }
}

impl CudaDevice {
    /// Opens a device, and says how many bytes are free on it. To be called on the thread that will use it.
    pub fn open(info: &DeviceInfo) -> Result<(Self, u64), DeviceError> {
        let context = CudaContext::new(usize::from(info.ordinal)).map_err(failed)?;
        // SAFETY: queues are put in order by marks; no slice of the library's own is used that would need its events.
        unsafe { context.disable_event_tracking() };
        let stream = || context.new_stream().map_err(failed);
        let streams = [stream()?, stream()?, stream()?];
        let free = context.mem_get_info().map_err(failed)?.0 as u64;
        let device = Self {
            info: info.clone(),
            streams,
            context,
            programs: HashMap::new(),
            marks: HashMap::new(),
            idle_events: Vec::new(),
            marked: 0,
            cache: cache::folder(),
        };
        Ok((device, free))
    }

    fn bind(&self) -> Result<(), DeviceError> {
        self.context.bind_to_thread().map_err(failed)
    }

    fn stream(&self, queue: Queue) -> &Arc<CudaStream> {
        &self.streams[queue as usize]
    }

    fn load(&self, program: &Program, code: Vec<u8>) -> Result<HashMap<&'static str, CudaFunction>, DeviceError> {
        let module = self.context.load_module(Ptx::from_binary(code)).map_err(failed)?;
        let entry = |name: &&'static str| Ok((*name, module.load_function(name).map_err(failed)?));
        program.kernel.entries.iter().map(entry).collect()
    }
}

impl Device for CudaDevice {
    fn prepare(&mut self, program: &Program) -> Result<(), DeviceError> {
        let label = program.label();
        if self.programs.contains_key(&label) {
            return Ok(());
        }
        let (arch, driver) = (self.info.arch, self.info.driver);
        let compile = || nvrtc::compile(program, arch, &[]).map(|c| c.code);
        let code = cache::get(self.cache.as_deref(), program, arch, driver, compile).map_err(DeviceError::Failed)?;
        let functions = self.load(program, code).map_err(|error| match error {
            DeviceError::Failed(why) => DeviceError::Failed(format!(
                "{label}: the driver ({}.{}) refuses the compiled kernel ({why}); NVRTC may be newer than the driver",
                driver / 1000,
                driver % 1000 / 10
            )),
            other => other,
        })?;
        self.programs.insert(label, functions);
        Ok(())
    }

    fn alloc(&mut self, bytes: usize) -> Result<Memory, DeviceError> {
        self.bind()?;
        // SAFETY: freed by `free`, or with the context.
        let memory = unsafe { result::malloc_sync(bytes) }.map_err(|error| match failed(error) {
            DeviceError::OutOfMemory(_) => DeviceError::OutOfMemory(bytes as u64),
            other => other,
        })?;
        Ok(Memory(memory))
    }

    fn free(&mut self, memory: Memory) {
        // SAFETY: came from `alloc`; the caller has let everything on it pass.
        if let Err(error) = self.bind().and_then(|()| unsafe { result::free_sync(memory.0) }.map_err(failed)) {
            tracing::debug!(device = %self.info.label(), ?error, "device memory not freed");
        }
    }

    unsafe fn upload(&mut self, from: &[u8], to: Memory) -> Result<(), DeviceError> {
        self.bind()?;
        let stream = self.stream(Queue::Upload).cu_stream();
        // SAFETY: as the caller promises.
        unsafe { result::memcpy_htod_async(to.0, from, stream) }.map_err(failed)
    }

    unsafe fn launch(&mut self, program: &Program, launch: &Launch, buffers: &[Memory]) -> Result<(), DeviceError> {
        let found = self.programs.get(&program.label()).and_then(|p| p.get(launch.entry));
        let function = found.ok_or_else(|| DeviceError::Failed(format!("{} was not prepared", program.label())))?;
        // CUDA reads as many bytes of each as the parameter has: the low ones.
        let values: Vec<u64> = launch.args.iter().map(|arg| arg.bits(buffers)).collect();
        let mut builder = self.stream(Queue::Compute).launch_builder(function);
        values.iter().for_each(|value| {
            builder.arg(value);
        });
        let config = LaunchConfig { grid_dim: (launch.blocks, 1, 1), block_dim: (launch.threads, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: as the caller promises; the driver copies the arguments before it returns.
        unsafe { builder.launch(config) }.map(|_| ()).map_err(failed)
    }

    unsafe fn download(&mut self, from: Memory, to: &mut [u8]) -> Result<(), DeviceError> {
        self.bind()?;
        let stream = self.stream(Queue::Download).cu_stream();
        // SAFETY: as the caller promises.
        unsafe { result::memcpy_dtoh_async(to, from.0, stream) }.map_err(failed)
    }

    fn mark(&mut self, queue: Queue) -> Result<Mark, DeviceError> {
        let event = match self.idle_events.pop() {
            Some(event) => event,
            None => self.context.new_event(None).map_err(failed)?,
        };
        event.record(self.stream(queue)).map_err(failed)?;
        self.marked += 1;
        self.marks.insert(self.marked, event);
        Ok(Mark(self.marked))
    }

    fn wait(&mut self, queue: Queue, mark: Mark) -> Result<(), DeviceError> {
        let Some(event) = self.marks.remove(&mark.0) else { return Ok(()) };
        self.stream(queue).wait(&event).map_err(failed)?;
        // What waits for it keeps the point that it was recorded at.
        self.idle_events.push(event);
        Ok(())
    }

    fn is_passed(&mut self, mark: Mark) -> Result<bool, DeviceError> {
        self.bind()?;
        let Some(event) = self.marks.get(&mark.0) else { return Ok(true) };
        let is_passed = event.try_is_complete().map_err(failed)?;
        if is_passed {
            self.idle_events.extend(self.marks.remove(&mark.0));
        }
        Ok(is_passed)
    }

    fn quiesce(&mut self) {
        for stream in &self.streams {
            let _ = stream.synchronize();
        }
    }
}

/// The CUDA devices of this machine.
pub struct Cuda;

impl Hardware for Cuda {
    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        device::devices().map(<[DeviceInfo]>::to_vec).map_err(str::to_owned)
    }

    fn compiler(&self) -> Result<Arch, String> {
        nvrtc::oldest_arch()
    }

    fn open(&self, info: &DeviceInfo) -> Result<(Box<dyn Device>, Option<u64>), DeviceError> {
        let (device, free) = CudaDevice::open(info)?;
        Ok((Box::new(device), Some(free)))
    }

    fn pinner(&self, devices: &[DeviceInfo]) -> Option<Box<dyn Pinner>> {
        let pinner = CudaPinner::new(devices)?;
        Some(Box::new(pinner))
    }
}

/// Pinned memory that every device copies from and to.
pub struct CudaPinner {
    /// One for each device: memory is pinned in the first that still works.
    contexts: Vec<Arc<CudaContext>>,
}

impl CudaPinner {
    /// `None` where no device opens: their actors will say why.
    pub fn new(devices: &[DeviceInfo]) -> Option<Self> {
        let mut ordinals: Vec<u16> = devices.iter().map(|d| d.ordinal).collect();
        ordinals.sort_unstable();
        ordinals.dedup();
        let contexts: Vec<_> = ordinals.into_iter().filter_map(|o| CudaContext::new(usize::from(o)).ok()).collect();
        (!contexts.is_empty()).then_some(Self { contexts })
    }
}

struct Pinned {
    slice: PinnedHostSlice<u8>,
    /// Where it lies, asked once: asking waits for the slice's own events.
    at: *mut u8,
}

// SAFETY: the memory is owned, and not tied to a thread.
unsafe impl Send for Pinned {}

impl Pinner for CudaPinner {
    fn pin(&self, bytes: usize) -> Option<Box<dyn HostMemory>> {
        // SAFETY: filled before it is read.
        let pin = |context: &Arc<CudaContext>| unsafe { context.alloc_pinned_with_flags::<u8>(bytes.max(1), PORTABLE) }.ok();
        let mut slice = self.contexts.iter().find_map(pin)?;
        let at = slice.as_mut_ptr().ok()?;
        // SAFETY: `bytes` bytes, just allocated; a slice must not show what nobody wrote.
        unsafe { at.write_bytes(0, bytes) };
        Some(Box::new(Pinned { slice, at }))
    }
}

impl HostMemory for Pinned {
    fn bytes(&self) -> &[u8] {
        // SAFETY: as long as the slice, which `self` owns.
        unsafe { std::slice::from_raw_parts(self.at, self.slice.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.slice.len()) }
    }
}
