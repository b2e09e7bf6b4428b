//! Which devices there are, and which of them a job runs on. The one place that asks whether CUDA's libraries exist:
//! `cudarc` panics where they do not, everyone else gets a `Result`.

use std::fmt;
use std::panic::catch_unwind;
use std::sync::OnceLock;

use cudarc::driver::result as driver;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

/// A compute capability: `sm_90`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arch {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// A CUDA device as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// N of `cuda:N`.
    pub ordinal: u16,
    /// `NVIDIA H200`
    pub name: String,
    pub arch: Arch,
    pub total_bytes: u64,
    /// As the driver counts: 13000 is 13.0.
    pub driver: i32,
}

impl DeviceInfo {
    pub fn label(&self) -> String {
        format!("cuda:{}", self.ordinal)
    }
}

/// The devices of this machine, or why none can be used. Asked once; never panics.
pub fn devices() -> Result<&'static [DeviceInfo], &'static str> {
    static FOUND: OnceLock<Result<Vec<DeviceInfo>, String>> = OnceLock::new();
    FOUND.get_or_init(discover).as_deref().map_err(String::as_str)
}

fn discover() -> Result<Vec<DeviceInfo>, String> {
    // SAFETY: opens a library by its well-known names and closes it.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err("no NVIDIA driver was found (libcuda.so.1 cannot be opened)".to_owned());
    }
    // The second net: a driver so old that it lacks a function makes cudarc panic.
    match catch_unwind(list) {
        Ok(Ok(list)) if list.is_empty() => Err("the NVIDIA driver sees no device".to_owned()),
        Ok(Ok(list)) => Ok(list),
        Ok(Err(error)) => Err(format!("the NVIDIA driver does not start: {error:?}")),
        Err(_) => Err("the NVIDIA driver is too old: it lacks a function".to_owned()),
    }
}

fn list() -> Result<Vec<DeviceInfo>, driver::DriverError> {
    driver::init()?;
    let mut version = 0;
    // SAFETY: an integer is written.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }.result()?;
    let mut found = Vec::new();
    for ordinal in 0..driver::device::get_count()? {
        let device = driver::device::get(ordinal)?;
        // SAFETY: `device` is one that the driver gave.
        let (major, minor, total) = unsafe {
            (
                driver::device::get_attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                driver::device::get_attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
                driver::device::total_mem(device)?,
            )
        };
        found.push(DeviceInfo {
            ordinal: ordinal as u16,
            name: driver::device::get_name(device)?,
            arch: Arch { major: major as u32, minor: minor as u32 },
            total_bytes: total as u64,
            driver: version,
        });
    }
    Ok(found)
}

/// Whether NVRTC can be opened; the error says how to get it. `HALOSTREAM_NVRTC` names its file or folder where the
/// system's search path does not find it (the PyPI wheels put it inside the Python environment).
pub fn has_nvrtc() -> Result<(), String> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        if let Some(place) = std::env::var_os("HALOSTREAM_NVRTC").filter(|v| !v.is_empty()) {
            open_first(std::path::Path::new(&place));
        }
        // SAFETY: opens a library by its well-known names and closes it.
        unsafe { cudarc::nvrtc::sys::is_culib_present() }
    });
    found.then_some(()).ok_or_else(|| {
        "NVRTC, which compiles the kernels, was not found: install it (`pip install nvidia-cuda-nvrtc`, or the CUDA toolkit) \
         and name its folder in HALOSTREAM_NVRTC"
            .to_owned()
    })
}

/// Opens NVRTC from a given file or folder and leaves it open: whoever asks for it by name then gets this one. The library
/// of builtins that it opens by name itself goes first.
fn open_first(place: &std::path::Path) {
    let folder = if place.is_dir() { place } else { place.parent().unwrap_or(place) };
    for stem in ["libnvrtc-builtins.so", "libnvrtc.so"] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_it = entry.file_name().to_string_lossy().starts_with(stem);
            let Ok(name) = std::ffi::CString::new(entry.path().into_os_string().into_encoded_bytes()) else { continue };
            if is_it {
                // SAFETY: a C string; the handle is never closed, so what it holds stays valid.
                unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            }
        }
    }
}

/// What `engine.devices` comes to on a machine: the CUDA devices to use, each entry of the list one actor, and whether the
/// CPU may compute what a device could.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub devices: Vec<DeviceInfo>,
    pub with_cpu: bool,
    /// Why `auto` does without devices that are there.
    pub note: Option<String>,
}

/// `asked`: `None` is `auto`. `found` are the machine's devices, `compiler` the oldest architecture that kernels can be
/// compiled for: both are asked only where they matter. Errors are for the user: exit 2.
pub fn select(
    asked: Option<&[String]>,
    found: impl FnOnce() -> Result<Vec<DeviceInfo>, String>,
    compiler: impl FnOnce() -> Result<Arch, String>,
) -> Result<Selection, String> {
    let Some(asked) = asked else {
        let Ok(mut devices) = found() else { return Ok(Selection { with_cpu: true, ..Selection::default() }) };
        let unused = |why: String| Some(format!("devices stay unused: {why}"));
        return Ok(match compiler() {
            Ok(oldest) => {
                let note = devices.iter().find_map(|d| too_old(d, oldest)).and_then(unused);
                devices.retain(|d| d.arch >= oldest);
                Selection { devices, with_cpu: true, note }
            }
            Err(why) => Selection { devices: Vec::new(), with_cpu: true, note: unused(why) },
        });
    };
    let with_cpu = asked.iter().any(|d| d == "cpu");
    let names: Vec<&String> = asked.iter().filter(|d| *d != "cpu").collect();
    let Some(first) = names.first() else { return Ok(Selection { with_cpu, ..Selection::default() }) };
    let advice = "use devices = \"auto\" or [\"cpu\"] to run on the CPU";
    let found = found().map_err(|why| format!("engine.devices: \"{first}\" is not there: {why}; {advice}"))?;
    let mut devices = Vec::new();
    for name in &names {
        let device = found.iter().find(|d| d.label() == **name).ok_or_else(|| {
            let there: Vec<String> = found.iter().map(|d| format!("\"{}\"", d.label())).collect();
            format!("engine.devices: \"{name}\" is not there, found are {}; {advice}", there.join(", "))
        })?;
        devices.push(device.clone());
    }
    let oldest = compiler().map_err(|why| format!("engine.devices: \"{first}\" cannot be used: {why}; {advice}"))?;
    if let Some(why) = devices.iter().find_map(|d| too_old(d, oldest)) {
        return Err(format!("engine.devices: {why}; {advice}"));
    }
    Ok(Selection { devices, with_cpu, note: None })
}

/// Why kernels cannot be compiled for a device, if they cannot.
fn too_old(device: &DeviceInfo, oldest: Arch) -> Option<String> {
    (device.arch < oldest).then(|| {
        format!("\"{}\" ({}, {}) is older than what this NVRTC compiles for, {oldest}", device.label(), device.name, device.arch)
    })
}

/// The arithmetic class of a job (I1), fixed in its plan: `cpu` unless a step whose device results differ in the last bits
/// runs on a device. Such a step's devices must be of one architecture: those of another than the first's are dropped.
pub fn arithmetic_class(selection: &mut Selection, is_exact: bool) -> &'static str {
    let Some(arch) = selection.devices.first().map(|d| d.arch).filter(|_| !is_exact) else { return "cpu" };
    selection.devices.retain(|d| d.arch == arch);
    // Its results may not be mixed with the CPU's either.
    selection.with_cpu = false;
    class_name(arch)
}

/// `cuda-sm_90`, kept for the life of the process: there are few.
fn class_name(arch: Arch) -> &'static str {
    static NAMES: std::sync::Mutex<Vec<&'static str>> = std::sync::Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let name = format!("cuda-{arch}");
    if let Some(known) = names.iter().find(|n| **n == name) {
        return known;
    }
    names.push(name.leak());
    names[names.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ordinal: u16, minor: u32) -> DeviceInfo {
        DeviceInfo { ordinal, name: "test".into(), arch: Arch { major: 8, minor }, total_bytes: 1 << 30, driver: 13000 }
    }

    fn list(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn discovery_answers_without_a_driver_and_without_a_compiler() {
        // Whatever this machine has: an answer, twice the same, and never a panic.
        assert_eq!(devices(), devices());
        if let Err(why) = devices() {
            assert!(why.contains("driver"), "{why}");
        }
        if let Err(why) = has_nvrtc() {
            assert!(why.contains("HALOSTREAM_NVRTC"), "{why}");
        }
    }

    #[test]
    fn what_is_asked_for_is_used_or_refused() {
        let two = || Ok(vec![device(0, 0), device(1, 6)]);
        let none = || Err("no NVIDIA driver was found".to_owned());
        let labels = |s: &Selection| s.devices.iter().map(DeviceInfo::label).collect::<Vec<_>>();
        let oldest = || Ok(Arch { major: 7, minor: 5 });
        let auto = select(None, none, || unreachable!("no device needs no compiler")).unwrap();
        assert_eq!(auto, Selection { devices: vec![], with_cpu: true, note: None });
        assert_eq!(labels(&select(None, two, oldest).unwrap()), ["cuda:0", "cuda:1"]);
        let without = select(None, two, || Err("no NVRTC".into())).unwrap();
        assert!(without.devices.is_empty() && without.note.is_some_and(|n| n.contains("no NVRTC")));
        let cpu = select(Some(&list(&["cpu"])), || unreachable!("the driver is left alone"), oldest).unwrap();
        assert!(cpu.devices.is_empty() && cpu.with_cpu);
        // The same device twice is two actors.
        let twice = select(Some(&list(&["cuda:1", "cuda:1"])), two, oldest).unwrap();
        assert_eq!((labels(&twice), twice.with_cpu), (vec!["cuda:1".to_owned(); 2], false));
        let refused =
            |asked: &[&str], found: fn() -> Result<Vec<DeviceInfo>, String>, nvrtc: Result<Arch, String>, words: &str| {
                let message = select(Some(&list(asked)), found, || nvrtc).unwrap_err();
                assert!(message.contains(words) && message.contains("devices = \"auto\""), "{message}");
            };
        refused(&["cuda:0"], none, oldest(), "\"cuda:0\" is not there: no NVIDIA driver was found");
        refused(&["cpu", "cuda:7"], two, oldest(), "\"cuda:7\" is not there, found are \"cuda:0\", \"cuda:1\"");
        // One that is too old for the compiler is left out, or refused where it was asked for.
        let newer = || Ok(Arch { major: 8, minor: 5 });
        let newest = select(None, two, newer).unwrap();
        assert_eq!(labels(&newest), ["cuda:1"]);
        let note = newest.note.unwrap();
        assert!(note.contains("\"cuda:0\" (test, sm_80) is older than what this NVRTC compiles for, sm_85"), "{note}");
        refused(&["cuda:1", "cuda:0"], two, newer(), "\"cuda:0\" (test, sm_80) is older");
        refused(&["cuda:0"], two, Err("no NVRTC".into()), "\"cuda:0\" cannot be used: no NVRTC");
    }

    #[test]
    fn one_arithmetic_class_for_a_job_i1() {
        let both = Selection { devices: vec![device(0, 0), device(1, 6), device(2, 0)], with_cpu: true, note: None };
        let mut exact = both.clone();
        assert_eq!((arithmetic_class(&mut exact, true), &exact), ("cpu", &both));
        let mut inexact = both;
        assert_eq!(arithmetic_class(&mut inexact, false), "cuda-sm_80");
        assert!(inexact.devices.iter().map(|d| d.ordinal).eq([0, 2]) && !inexact.with_cpu);
        assert_eq!(arithmetic_class(&mut Selection::default(), false), "cpu");
    }
}
