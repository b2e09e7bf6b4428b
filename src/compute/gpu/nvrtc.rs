//! Kernels from source to device code by NVRTC, which is opened at run time. One program takes about 0.1 to 1 s; `cache`
//! keeps the result.

use std::ffi::{CString, c_char};

use cudarc::nvrtc::{result, sys};

use super::job::{OPTIONS, Program};
use crate::compute::device::{Arch, has_nvrtc};

/// Device code and what the compiler said.
pub struct Compiled {
    pub cubin: Vec<u8>,
    pub log: String,
}

/// Compiles for one architecture. Errors hold the compiler's log.
pub fn compile(program: &Program, arch: Arch, extra: &[&str]) -> Result<Compiled, String> {
    has_nvrtc()?;
    let source = CString::new(program.source()).map_err(|_| format!("{}: a zero byte in the source", program.label()))?;
    let name = CString::new(format!("{}.cu", program.kernel.name)).unwrap_or_default();
    let unit = result::create_program(&source, Some(&name)).map_err(|e| format!("{}: {e}", program.label()))?;
    let mut options = vec![format!("--gpu-architecture={arch}")];
    options.extend(OPTIONS.iter().chain(extra).map(|o| (*o).to_owned()));
    // SAFETY: `unit` was made above and is destroyed below, once; buffers are as long as NVRTC says.
    unsafe {
        let compiled = result::compile_program(unit, &options);
        let log = result::get_program_log(unit).map(text).unwrap_or_default();
        let cubin = compiled.and_then(|()| {
            let mut size = 0;
            sys::nvrtcGetCUBINSize(unit, &mut size).result()?;
            let mut cubin = vec![0u8; size];
            sys::nvrtcGetCUBIN(unit, cubin.as_mut_ptr().cast::<c_char>()).result()?;
            Ok(cubin)
        });
        let _ = result::destroy_program(unit);
        match cubin {
            Ok(cubin) => Ok(Compiled { cubin, log }),
            Err(error) => Err(format!("{} for {arch} with NVRTC {}: {error}\n{log}", program.label(), version())),
        }
    }
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
