//! Kernels from source to device code by NVRTC, which is opened at run time. One program takes about 0.1 to 1 s; `cache`
//! keeps the result.

use std::ffi::{CString, c_char};
use std::panic::catch_unwind;

use cudarc::nvrtc::{result, sys};

use super::job::{OPTIONS, Program};
use crate::compute::device::{Arch, has_nvrtc};

/// Device code and what the compiler said.
pub struct Compiled {
    /// Machine code (a cubin), or PTX with its closing zero: the driver tells them apart.
    pub code: Vec<u8>,
    pub log: String,
}

/// What NVRTC makes for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Machine(Arch),
    /// The device is newer than NVRTC: the newest that it knows, for the driver to finish.
    Ptx(Arch),
}

impl Target {
    /// `known`: what NVRTC compiles for, ascending.
    fn of(arch: Arch, known: &[Arch]) -> Self {
        match known.iter().rfind(|k| **k <= arch) {
            Some(nearest) if *nearest != arch => Self::Ptx(*nearest),
            // One that is older than all of them is for NVRTC to refuse.
            _ => Self::Machine(arch),
        }
    }

    fn option(self) -> String {
        match self {
            Self::Machine(arch) => format!("--gpu-architecture={arch}"),
            Self::Ptx(arch) => format!("--gpu-architecture=compute_{}{}", arch.major, arch.minor),
        }
    }
}

/// Compiles for one architecture. Errors hold the compiler's log.
pub fn compile(program: &Program, arch: Arch, extra: &[&str]) -> Result<Compiled, String> {
    let target = Target::of(arch, &known_archs()?);
    let source = CString::new(program.source()).map_err(|_| format!("{}: a zero byte in the source", program.label()))?;
    let name = CString::new(format!("{}.cu", program.kernel.name)).unwrap_or_default();
    let unit = result::create_program(&source, Some(&name)).map_err(|e| format!("{}: {e}", program.label()))?;
    let mut options = vec![target.option()];
    options.extend(OPTIONS.iter().chain(extra).map(|o| (*o).to_owned()));
    // SAFETY: `unit` was made above and is destroyed below, once; buffers are as long as NVRTC says.
    unsafe {
        let compiled = result::compile_program(unit, &options);
        let log = result::get_program_log(unit).map(text).unwrap_or_default();
        let code = compiled.and_then(|()| match target {
            Target::Machine(_) => {
                let mut size = 0;
                sys::nvrtcGetCUBINSize(unit, &mut size).result()?;
                let mut cubin = vec![0u8; size];
                sys::nvrtcGetCUBIN(unit, cubin.as_mut_ptr().cast::<c_char>()).result()?;
                Ok(cubin)
            }
            Target::Ptx(_) => Ok(result::get_ptx(unit)?.into_iter().map(|c| c as u8).collect()),
        });
        let _ = result::destroy_program(unit);
        match code {
            Ok(code) => Ok(Compiled { code, log }),
            Err(error) => Err(format!("{} for {arch} with NVRTC {}: {error}\n{log}", program.label(), version())),
        }
    }
}

/// The oldest architecture that kernels can be compiled for; the error says what to install.
pub fn oldest_arch() -> Result<Arch, String> {
    known_archs()?.first().copied().ok_or_else(|| format!("NVRTC {} knows no architecture", version()))
}

/// What NVRTC compiles for, ascending.
fn known_archs() -> Result<Vec<Arch>, String> {
    has_nvrtc()?;
    // A library so old that it lacks a function makes cudarc panic.
    let asked = catch_unwind(|| {
        let mut count = 0;
        // SAFETY: an integer is written, then as many as it says.
        unsafe {
            sys::nvrtcGetNumSupportedArchs(&mut count).result()?;
            let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
            sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()).result()?;
            Ok(numbers)
        }
    });
    let numbers = match asked {
        Ok(answer) => answer.map_err(|error: result::NvrtcError| format!("NVRTC does not name its architectures: {error}"))?,
        Err(_) => return Err("NVRTC is too old: it lacks a function; install one of CUDA 12 or 13".to_owned()),
    };
    let mut known: Vec<Arch> = numbers.iter().map(|n| Arch { major: *n as u32 / 10, minor: *n as u32 % 10 }).collect();
    known.sort_unstable();
    Ok(known)
}

fn text(log: Vec<c_char>) -> String {
    let bytes: Vec<u8> = log.into_iter().map(|c| c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `13.0`, or `?`. Needs the library to be there.
fn version() -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two integers are written.
    match unsafe { sys::nvrtcVersion(&mut major, &mut minor) } {
        sys::nvrtcResult::NVRTC_SUCCESS => format!("{major}.{minor}"),
        _ => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_newer_than_the_compiler_gets_ptx() {
        let known = [(7, 5), (9, 0), (12, 1)].map(|(major, minor)| Arch { major, minor });
        let option = |major, minor| Target::of(Arch { major, minor }, &known).option();
        assert_eq!(option(9, 0), "--gpu-architecture=sm_90");
        assert_eq!(option(15, 0), "--gpu-architecture=compute_121");
        assert_eq!(option(8, 9), "--gpu-architecture=compute_75");
        assert_eq!(option(7, 0), "--gpu-architecture=sm_70");
    }
}
