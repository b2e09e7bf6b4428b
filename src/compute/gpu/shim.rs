//! A device that is the CPU, for tests: kernels compiled by the system's C++ compiler behind `shim.h`, run where they are
//! enqueued. Buffers have guards on both sides and begin as garbage.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::job::{Launch, Program};
use super::{Device, DeviceError, Mark, Memory, Queue};

/// Bytes on both sides of a buffer that no kernel may touch.
const GUARD: usize = 256;
const GUARDED: u8 = 0xa7;

type Entry = unsafe extern "C" fn(*mut *mut c_void, u32, u32, u64) -> i32;

/// Libraries by source. Shared memory is static in them: one launch at a time.
static LIBRARIES: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);

/// The system's C++ compiler, if it runs.
pub fn compiler() -> Option<String> {
    let name = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    Command::new(&name).arg("--version").output().is_ok_and(|o| o.status.success()).then_some(name)
}

/// Says that a test did less than it could.
pub fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}

fn library(program: &Program) -> Result<usize, String> {
    let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let libraries = libraries.get_or_insert_default();
    let mut source = format!("{}\n{}\n", include_str!("shim.h"), program.source());
    program.kernel.entries.iter().for_each(|entry| source += &format!("SHIM_ENTRY({entry})\n"));
    if let Some(handle) = libraries.get(&source) {
        return Ok(*handle);
    }
    let stem = format!("halostream-shim-{}-{}", std::process::id(), libraries.len());
    let folder: PathBuf = std::env::temp_dir().join(stem);
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let (text, built) = (folder.join("kernel.cpp"), folder.join("kernel.so"));
    std::fs::write(&text, source.as_bytes()).map_err(|e| e.to_string())?;
    let compiler = compiler().ok_or("no C++ compiler")?;
    let flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas", "-o"];
    let output = Command::new(compiler).args(flags).arg(&built).arg(&text).output().map_err(|e| e.to_string())?;
    let handle = CString::new(built.as_os_str().as_encoded_bytes())
        // SAFETY: a C string; the library's constructors are ours. It stays open.
        .map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) } as usize);
    let _ = std::fs::remove_dir_all(&folder);
    match handle {
        Ok(handle) if handle != 0 => {
            libraries.insert(source, handle);
            Ok(handle)
        }
        _ => Err(format!("{}:\n{}", program.label(), String::from_utf8_lossy(&output.stderr))),
    }
}

/// The CPU as a device.
pub struct ShimDevice {
    /// 0: threads of a block in order, else shuffled.
    seed: u64,
    buffers: HashMap<u64, Vec<u8>>,
}

impl ShimDevice {
    pub fn new(seed: u64) -> Self {
        Self { seed, buffers: HashMap::new() }
    }

    fn check(buffer: &[u8]) {
        let (head, tail) = (&buffer[..GUARD], &buffer[buffer.len() - GUARD..]);
        assert!(head.iter().chain(tail).all(|b| *b == GUARDED), "a kernel wrote outside its buffer");
    }
}

impl Device for ShimDevice {
    fn prepare(&mut self, program: &Program) -> Result<(), DeviceError> {
        library(program).map(|_| ()).map_err(DeviceError::Failed)
    }

    fn alloc(&mut self, bytes: usize) -> Result<Memory, DeviceError> {
        let mut buffer = vec![0x5b; bytes + 2 * GUARD];
        buffer[..GUARD].fill(GUARDED);
        buffer[GUARD + bytes..].fill(GUARDED);
        let at = buffer.as_ptr() as u64 + GUARD as u64;
        self.buffers.insert(at, buffer);
        Ok(Memory(at))
    }

    fn free(&mut self, memory: Memory) {
        Self::check(&self.buffers.remove(&memory.0).expect("allocated here, freed once"));
    }

    unsafe fn upload(&mut self, from: &[u8], to: Memory) -> Result<(), DeviceError> {
        let buffer = self.buffers.get_mut(&to.0).expect("allocated here");
        assert!(from.len() + 2 * GUARD <= buffer.len(), "an upload beyond its buffer");
        buffer[GUARD..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    unsafe fn launch(&mut self, program: &Program, launch: &Launch, buffers: &[Memory]) -> Result<(), DeviceError> {
        let handle = library(program).map_err(DeviceError::Failed)?;
        let name = CString::new(format!("shim_{}", launch.entry)).expect("no zero byte");
        // SAFETY: an open library and a C string.
        let entry = unsafe { libc::dlsym(handle as *mut c_void, name.as_ptr()) };
        assert!(!entry.is_null(), "{} has no entry {}", program.label(), launch.entry);
        // SAFETY: SHIM_ENTRY defines it with this type.
        let entry: Entry = unsafe { std::mem::transmute(entry) };
        let mut values: Vec<u64> = launch.args.iter().map(|arg| arg.bits(buffers)).collect();
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|v| (v as *mut u64).cast()).collect();
        let _one_at_a_time = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the arguments are the kernel's, as the caller promises.
        unsafe { entry(pointers.as_mut_ptr(), launch.blocks, launch.threads, self.seed) };
        self.buffers.values().for_each(|b| Self::check(b));
        Ok(())
    }

    unsafe fn download(&mut self, from: Memory, to: &mut [u8]) -> Result<(), DeviceError> {
        to.copy_from_slice(&self.buffers[&from.0][GUARD..][..to.len()]);
        Ok(())
    }

    fn mark(&mut self, _queue: Queue) -> Result<Mark, DeviceError> {
        Ok(Mark(0))
    }

    fn wait(&mut self, _queue: Queue, _mark: Mark) -> Result<(), DeviceError> {
        Ok(())
    }

    fn is_passed(&mut self, _mark: Mark) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn quiesce(&mut self) {}
}

/// Runs a job on a device by itself and returns its outputs: the way of an actor without an actor.
pub fn run(device: &mut dyn Device, job: &super::job::Job, inputs: &[&[u8]]) -> Result<Vec<Vec<u8>>, DeviceError> {
    assert_eq!(inputs.iter().map(|i| i.len()).collect::<Vec<_>>(), job.inputs);
    device.prepare(&job.program)?;
    let buffers: Vec<Memory> = job.sizes().map(|n| device.alloc(super::job::rounded(n))).collect::<Result<_, _>>()?;
    let mut outputs: Vec<Vec<u8>> = job.outputs.iter().map(|n| vec![0; *n]).collect();
    // SAFETY: all of it outlives `quiesce`; the job fits its kernels.
    unsafe {
        for (input, buffer) in inputs.iter().zip(&buffers) {
            device.upload(input, *buffer)?;
        }
        let up = device.mark(Queue::Upload)?;
        device.wait(Queue::Compute, up)?;
        for launch in &job.launches {
            device.launch(&job.program, launch, &buffers)?;
        }
        let computed = device.mark(Queue::Compute)?;
        device.wait(Queue::Download, computed)?;
        for (output, buffer) in outputs.iter_mut().zip(&buffers[job.inputs.len()..]) {
            device.download(*buffer, output)?;
        }
    }
    device.quiesce();
    buffers.into_iter().for_each(|b| device.free(b));
    Ok(outputs)
}
