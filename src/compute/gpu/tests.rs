//! Every kernel without a GPU: compiled for three architectures, run on the CPU, equal to the CPU operator. Where there is a
//! GPU the same bodies run on it too.

use super::Device;
use super::cuda::CudaDevice;
use super::job::{Arg, Job, Launch, Program};
use super::kernels::{KERNELS, Kernel};
use super::shim::{ShimDevice, compiler, run, skipped};
use crate::compute::device::{self, Arch, has_nvrtc};
use crate::operators::testing::Random;

/// The first GPU, where there is one and kernels can be compiled for it.
pub fn cuda() -> Option<CudaDevice> {
    let info = device::devices().ok()?.first()?;
    has_nvrtc().ok()?;
    Some(CudaDevice::open(info).unwrap_or_else(|e| panic!("{}: {e}", info.label())).0)
}

/// The devices that a test body runs on: a GPU where there is one, the CPU with threads in order and shuffled.
pub fn devices() -> Vec<(&'static str, Box<dyn Device>)> {
    let mut list: Vec<(&'static str, Box<dyn Device>)> = Vec::new();
    if let Some(device) = cuda() {
        list.push(("cuda", Box::new(device)));
    }
    match compiler() {
        Some(_) => {
            list.push(("forward", Box::new(ShimDevice::new(0))));
            list.push(("shuffled", Box::new(ShimDevice::new(11))));
        }
        None => skipped("kernels on the CPU, no C++ compiler here"),
    }
    list
}

/// Entry, registers and spilled bytes of each kernel of a program, as the assembler reports them.
fn resources(program: &Program, arch: Arch, extra: &[&str]) -> Vec<(String, u64, u64)> {
    let options = [&["--ptxas-options=-v"], extra].concat();
    let compiled = super::nvrtc::compile(program, arch, &options).unwrap_or_else(|e| panic!("{e}"));
    assert!(compiled.code.starts_with(b"\x7fELF"), "{}", program.label());
    let number = |line: &str, before: &str| -> u64 {
        let word = line.split(before).next().and_then(|head| head.split_whitespace().next_back());
        word.and_then(|w| w.parse().ok()).unwrap_or_else(|| panic!("no number before{before} in {line}"))
    };
    let (mut found, mut entry, mut spilled) = (Vec::new(), "", 0);
    for line in compiled.log.lines() {
        if line.contains("Compiling entry function") {
            entry = line.split('\'').nth(1).unwrap_or("");
        } else if line.contains(" bytes spill stores") {
            spilled = number(line, " bytes spill stores");
        } else if line.contains(" registers") {
            found.push((entry.to_owned(), number(line, " registers"), spilled));
        }
    }
    assert_eq!(found.len(), program.kernel.entries.len(), "{}: reported were\n{}", program.label(), compiled.log);
    found
}

#[test]
fn every_kernel_compiles_for_three_architectures_without_spills() {
    if let Err(why) = has_nvrtc() {
        return skipped(&format!("compiling kernels, {why}"));
    }
    for (major, minor) in [(7, 5), (8, 0), (9, 0)] {
        let arch = Arch { major, minor };
        for (program, is_hot) in KERNELS.iter().flat_map(|k| k.programs()) {
            for (entry, registers, spilled) in resources(&program, arch, &[]) {
                println!("{arch} {registers:3} registers {spilled:3} bytes spilled  {entry}  {}", program.label());
                assert!(!is_hot || spilled == 0, "{entry} of {} for {arch} spills {spilled} bytes", program.label());
            }
        }
    }
    // A device newer than the compiler gets text that its driver compiles: it ends with a zero.
    let newer = super::nvrtc::compile(&KERNELS[0].programs().remove(0).0, Arch { major: 99, minor: 0 }, &[]).unwrap();
    let text = newer.code.strip_suffix(b"\0").expect("a closing zero");
    assert!(String::from_utf8_lossy(text).contains(".target sm_") && !text.contains(&0));
    // The check sees spills: with few registers the sample of a pixel does not fit.
    let program = crate::operators::ks_test::device::KERNEL.programs().remove(0).0;
    let starved = resources(&program, Arch { major: 9, minor: 0 }, &["--maxrregcount=32"]);
    assert!(starved.iter().any(|(_, registers, spilled)| *registers <= 32 && *spilled > 0), "{starved:?}");
}

#[test]
#[ignore = "for .ci/gpu.sh"]
fn what_device_is_here() {
    match (device::devices(), has_nvrtc()) {
        (Ok(list), Ok(())) => {
            let (first, gib) = (&list[0], list[0].total_bytes as f64 / (1u64 << 30) as f64);
            println!("device: {}, {}, {gib:.0} GiB, driver {}, {} here", first.name, first.arch, first.driver, list.len());
        }
        (Err(why), _) => println!("device: none, {why}"),
        (_, Err(why)) => println!("device: none, {why}"),
    }
}

#[test]
fn a_kernel_that_does_not_compile_says_why() {
    if let Err(why) = has_nvrtc() {
        return skipped(&format!("compiling kernels, {why}"));
    }
    let mut program = KERNELS[0].programs().remove(0).0;
    program.defines[0].1 = "DTYPE_MISSPELT_TYPE +".to_owned();
    let message = super::nvrtc::compile(&program, Arch { major: 9, minor: 0 }, &[]).err().expect("refused");
    assert!(message.contains("amplitude DTYPE=") && message.contains("error"), "{message}");
}

#[test]
fn the_shim_tells_a_kernel_that_lacks_a_barrier() {
    static REVERSE: Kernel = Kernel {
        name: "reverse",
        source: "KERNEL reverse(const u8 *in, u8 *out) {\n    __shared__ u8 all[64];\n    all[threadIdx.x] = in[threadIdx.x];\n\
                 BARRIER;\n    out[threadIdx.x] = all[63 - threadIdx.x];\n}\n",
        entries: &["reverse"],
        variants: Vec::new,
    };
    if compiler().is_none() {
        return skipped("the shim, no C++ compiler here");
    }
    let values: Vec<u8> = (1..=64).collect();
    let want: Vec<u8> = (1..=64).rev().collect();
    for seed in [0, 11] {
        for (barrier, is_right) in [("__syncthreads()", true), ("", false)] {
            let program = REVERSE.program(vec![("BARRIER", barrier.to_owned())]);
            let launch = Launch { entry: "reverse", blocks: 1, threads: 64, args: vec![Arg::Buffer(0), Arg::Buffer(1)] };
            let job = Job { program, inputs: vec![64], outputs: vec![64], scratch: vec![], launches: vec![launch] };
            let got = run(&mut ShimDevice::new(seed), &job, &[&values]).unwrap().remove(0);
            assert_eq!(got == want, is_right, "barrier {barrier:?}, seed {seed}");
        }
    }
}

#[test]
fn compiled_kernels_are_kept_by_source_options_and_driver() {
    use super::cache::{file, get, read, write};
    let folder = std::env::temp_dir().join(format!("halostream-cache-{}", std::process::id()));
    let programs: Vec<_> = KERNELS.iter().flat_map(|k| k.programs()).map(|p| p.0).collect();
    let arch = Arch { major: 9, minor: 0 };
    let mut names = std::collections::BTreeSet::new();
    for program in &programs {
        for (arch, driver) in [(arch, 13000), (arch, 12080), (Arch { major: 8, minor: 0 }, 13000)] {
            assert!(names.insert(file(&folder, program, arch, driver)), "one name for two programs");
        }
    }
    let program = &programs[0];
    let code = get(Some(&folder), program, arch, 13000, || Ok(b"code".to_vec())).unwrap();
    assert_eq!(code, b"code");
    let again = get(Some(&folder), program, arch, 13000, || panic!("it is there"));
    assert_eq!(again.unwrap(), b"code");
    // A damaged file counts as absent and is replaced.
    let path = file(&folder, program, arch, 13000);
    for damaged in [b"".to_vec(), b"short".to_vec(), [std::fs::read(&path).unwrap(), vec![0]].concat()] {
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(read(&path), None);
    }
    assert_eq!(get(Some(&folder), program, arch, 13000, || Ok(b"new".to_vec())).unwrap(), b"new");
    assert_eq!(read(&path).unwrap(), b"new");
    assert!(get(Some(&folder), program, arch, 12080, || Err("no compiler".into())).is_err());
    // No folder, or one that cannot be made: compiled each time.
    assert_eq!(get(None, program, arch, 1, || Ok(b"x".to_vec())).unwrap(), b"x");
    std::fs::write(folder.join("file"), b"").unwrap();
    assert!(write(&folder.join("file/x.cubin"), b"x").is_err());
    assert_eq!(get(Some(&folder.join("file")), program, arch, 1, || Ok(b"x".to_vec())).unwrap(), b"x");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn bits_unpacked_on_a_device_are_the_cpus_i9() {
    use crate::codec::bitpack::{KERNEL, pack_rows, packed_row_bytes};
    let mut random = Random::new(22);
    for (name, mut device) in devices() {
        for (program, _) in KERNEL.programs() {
            let width: u8 = program.defines[0].1.parse().unwrap();
            for (rows, row_len) in [(1, 1), (3, 7), (5, 33), (1, 4096), (40, 129)] {
                let values: Vec<u8> = (0..rows * row_len).map(|_| random.below(1 << width) as u8).collect();
                let mut packed = vec![0; rows * packed_row_bytes(row_len, width)];
                assert!(pack_rows(&values, row_len, width, &mut packed));
                let args = vec![Arg::Buffer(0), Arg::Buffer(1), Arg::I64(rows as i64), Arg::I64(row_len as i64)];
                let job = Job {
                    program: program.clone(),
                    inputs: vec![packed.len()],
                    outputs: vec![values.len()],
                    scratch: vec![],
                    launches: vec![Launch { entry: "unpack", blocks: 4, threads: 96, args }],
                };
                let got = run(device.as_mut(), &job, &[&packed]).unwrap().remove(0);
                assert_eq!(got, values, "{name}, {width} bits, {rows} rows of {row_len}");
            }
        }
    }
}
