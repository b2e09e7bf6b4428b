//! The scheduler on devices that are slow, small or lost; and whole jobs on devices that are the CPU.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::fake::{Event, Faults, PlainDevice, Trial};
use super::fleet::{CpuShare, Fleet, Seat, Undone};
use super::job::{Arg, Job, Launch, rounded};
use super::kernels::KERNELS;
use super::pinning;
use super::pulse::Patience;
use super::shim::{ShimDevice, compiler, skipped};
use super::{Device, DeviceError, Hardware, HostMemory, Memory, Pinner, Queue};
use crate::compute::device::{Arch, DeviceInfo};

const BYTES: usize = 1000;
const CPU: CpuShare = CpuShare { mixes: false, takes_over: false };

/// Longer than any test runs.
fn patient() -> Patience {
    Patience::new(Duration::from_secs(3600))
}

fn unpinned() -> pinning::Open {
    Box::new(|| None)
}

fn seat(label: &str, budget: u64, faults: &Faults) -> Seat {
    let faults = faults.clone();
    let open = move || Ok((Box::new(Trial::new(Box::new(PlainDevice::default()), faults)) as Box<dyn Device>, None));
    Seat { label: label.to_owned(), budget, open: Box::new(open) }
}

fn job(bytes: usize) -> Arc<Job> {
    let launch = Launch { entry: "plain", blocks: 1, threads: 1, args: vec![Arg::Buffer(0), Arg::Buffer(1)] };
    let program = KERNELS[0].programs().remove(0).0;
    Arc::new(Job { program, inputs: vec![bytes], outputs: vec![bytes], scratch: vec![100], launches: vec![launch] })
}

/// Bytes of [`job`] on a device.
fn job_bytes(bytes: usize) -> u64 {
    (2 * rounded(bytes) + rounded(100)) as u64
}

/// One job with its own bytes; whether they came back one higher.
fn run_one(fleet: &Fleet, value: u8, bytes: usize, stop: &AtomicBool) -> Result<bool, Undone> {
    let job = job(bytes);
    let mut staging = fleet.staging(job.staging_bytes(), stop);
    let fill = |to: &mut [u8]| to[job.staged(0)].fill(value);
    fill(staging.bytes_mut());
    let staging = fleet.run(&job, staging, fill, false, stop)?;
    let is_right = staging.bytes()[job.staged(1)].iter().all(|b| *b == value.wrapping_add(1));
    fleet.give_back(staging);
    Ok(is_right)
}

/// So many jobs from so many workers, all of which must come back right.
fn run_all(fleet: &Fleet, jobs: u64, workers: u64) {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= jobs {
                        break;
                    }
                    assert_eq!(run_one(fleet, n as u8, BYTES, &stop), Ok(true), "job {n}");
                }
            });
        }
    });
}

#[test]
fn uploads_kernels_and_downloads_of_three_jobs_overlap() {
    let mut faults = Faults::default();
    // No download ends before three jobs were uploaded: a scheduler that does one after the other gets stuck here.
    faults.gate = Some((faults.uploads.clone(), 3));
    let fleet = Fleet::start(vec![seat("fake:0", 1 << 20, &faults)], CPU, unpinned(), patient()).unwrap();
    run_all(&fleet, 12, 4);
    assert_eq!(fleet.reports()[0].jobs, 12);
    drop(fleet);
    assert_eq!(faults.forced.load(Ordering::SeqCst), 0, "a job waited for the one before to come back");
    let log = faults.log.lock().unwrap();
    let at = |event: &Event, from: usize| from + log[from..].iter().position(|e| e == event).expect("logged");
    // Three at most: the fourth upload comes after the first landing.
    let uploads: Vec<usize> = (0..log.len()).filter(|&i| matches!(log[i], Event::Upload(_))).collect();
    let landings: Vec<usize> = (0..log.len()).filter(|&i| matches!(log[i], Event::Passed(_))).collect();
    assert_eq!((uploads.len(), landings.len()), (12, 12));
    for n in 3..12 {
        assert!(uploads[n] > landings[n - 3], "more than three jobs in flight");
    }
    // Each job: upload, its mark, kernels that wait for it, a mark, the download that waits for that.
    for &upload in &uploads {
        let Event::Mark(Queue::Upload, uploaded) = log[upload + 1] else { panic!("{:?}", log[upload + 1]) };
        let launch = at(&Event::Wait(Queue::Compute, uploaded), upload) + 1;
        assert!(matches!(log[launch], Event::Launch(_)));
        let Event::Mark(Queue::Compute, computed) = log[launch + 1] else { panic!("{:?}", log[launch + 1]) };
        let download = at(&Event::Wait(Queue::Download, computed), launch) + 1;
        assert!(matches!(log[download], Event::Download(Memory(_))));
        assert!(matches!(log[download + 1], Event::Mark(Queue::Download, _)));
    }
}

#[test]
fn a_device_never_holds_more_than_its_budget_i2() {
    // Room for two jobs of the three that could be in flight.
    let budget = 2 * job_bytes(BYTES) + 100;
    let faults = Faults { capacity: Some(budget), ..Faults::default() };
    let fleet = Fleet::start(vec![seat("fake:0", budget, &faults)], CPU, unpinned(), patient()).unwrap();
    run_all(&fleet, 30, 5);
    let stop = AtomicBool::new(false);
    // Other sizes: what is kept for reuse makes room.
    for bytes in [300, 1700, BYTES, 256] {
        assert_eq!(run_one(&fleet, 7, bytes, &stop), Ok(true));
    }
    assert_eq!(run_one(&fleet, 7, 10 * BYTES, &stop), Err(Undone::TooLarge));
    let report = fleet.reports().remove(0);
    assert_eq!((report.jobs, report.out_of_memory), (34, 0));
    assert!(report.peak_device_bytes <= budget && report.peak_device_bytes > job_bytes(BYTES), "{report:?}");
    assert_eq!((report.bytes_up, report.bytes_down), (33_256, 33_256));
}

#[test]
fn out_of_memory_gives_the_job_back_to_be_halved() {
    // It says that it has much, and has room for one small job.
    let faults = Faults { capacity: Some(job_bytes(BYTES)), ..Faults::default() };
    let fleet = Fleet::start(vec![seat("fake:0", 1 << 30, &faults)], CPU, unpinned(), patient()).unwrap();
    let stop = AtomicBool::new(false);
    assert_eq!(run_one(&fleet, 1, 4 * BYTES, &stop), Err(Undone::TooLarge));
    assert_eq!(fleet.reports()[0].out_of_memory, 1);
    // What it had no room for is not tried again.
    assert_eq!(fleet.room(), Some(job_bytes(4 * BYTES) - 1));
    assert_eq!(run_one(&fleet, 1, 4 * BYTES, &stop), Err(Undone::TooLarge));
    assert_eq!(fleet.reports()[0].out_of_memory, 1);
    // Several small ones share the little there is, one after the other.
    run_all(&fleet, 20, 4);
    assert_eq!((fleet.reports()[0].jobs, fleet.reports()[0].out_of_memory), (20, 1));
}

#[test]
fn a_launch_without_room_waits_or_is_halved() {
    let stop = AtomicBool::new(false);
    // Room for the buffers of two jobs, for a launch beside those of one.
    let launch_takes = job_bytes(BYTES) / 2;
    let tight = Faults { capacity: Some(2 * job_bytes(BYTES)), launch_takes, ..Faults::default() };
    let fleet = Fleet::start(vec![seat("fake:0", 1 << 20, &tight)], CPU, unpinned(), patient()).unwrap();
    run_all(&fleet, 20, 4);
    assert_eq!((fleet.reports()[0].jobs, fleet.reports()[0].out_of_memory), (20, 0));
    assert_eq!(run_one(&fleet, 1, 2 * BYTES, &stop), Err(Undone::TooLarge));
    assert_eq!(fleet.reports()[0].out_of_memory, 1);
    assert_eq!(run_one(&fleet, 1, BYTES, &stop), Ok(true));
}

#[test]
fn a_lost_device_hands_its_jobs_to_another_i6() {
    for panics in [false, true] {
        let dying = Faults { launches: Some(2), panics, ..Faults::default() };
        // The healthy one waits until the other is at its third launch, so that there is something to take over.
        let healthy = Faults { gate: Some((dying.uploads.clone(), 3)), ..Faults::default() };
        let seats = vec![seat("fake:0", 1 << 20, &dying), seat("fake:1", 1 << 20, &healthy)];
        let fleet = Fleet::start(seats, CPU, unpinned(), patient()).unwrap();
        run_all(&fleet, 20, 8);
        let reports = fleet.reports();
        assert!(reports[0].lost.as_deref().is_some_and(|l| l.contains(if panics { "panicked" } else { "off the bus" })));
        assert!(reports[1].lost.is_none() && reports[0].jobs + reports[1].jobs == 20, "{reports:?}");
        assert!(fleet.failed_over.load(Ordering::Relaxed) >= 1);
        assert!(fleet.losses().starts_with("fake:0: "));
        assert_eq!(fleet.room(), Some(1 << 20));
    }
}

#[test]
fn with_the_last_device_jobs_end_too_i7() {
    let dying = Faults { launches: Some(1), ..Faults::default() };
    let closed = Seat {
        label: "fake:1".to_owned(),
        budget: 1 << 20,
        open: Box::new(|| Err(DeviceError::Lost("no such device".to_owned()))),
    };
    let fleet = Fleet::start(vec![seat("fake:0", 1 << 20, &dying), closed], CPU, unpinned(), patient()).unwrap();
    let stop = AtomicBool::new(false);
    let mut answers = vec![run_one(&fleet, 1, BYTES, &stop), run_one(&fleet, 2, BYTES, &stop)];
    answers.push(run_one(&fleet, 3, BYTES, &stop));
    assert_eq!(answers, [Ok(true), Err(Undone::NoneLeft), Err(Undone::NoneLeft)]);
    assert_eq!(fleet.room(), None);
    assert!(fleet.losses().contains("fake:1: it does not open: lost: no such device"), "{}", fleet.losses());
}

/// Memory that counts what is made and what is given back.
#[derive(Clone, Default)]
struct Ledger {
    made: Arc<AtomicU64>,
    freed: Arc<AtomicU64>,
}

struct Counted(Vec<u8>, Ledger);

impl Ledger {
    fn opening(&self) -> pinning::Open {
        let own = self.clone();
        Box::new(move || Some(Box::new(own)))
    }
}

impl Pinner for Ledger {
    fn pin(&self, bytes: usize) -> Option<Box<dyn HostMemory>> {
        self.made.fetch_add(1, Ordering::SeqCst);
        Some(Box::new(Counted(vec![0; bytes], self.clone())))
    }
}

impl HostMemory for Counted {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.freed.fetch_add(1, Ordering::SeqCst);
    }
}

/// A clock that stands until it is set, and ten seconds of patience by it.
fn standing_clock() -> (Arc<AtomicU64>, Patience) {
    let seconds = Arc::new(AtomicU64::new(0));
    let clock = seconds.clone();
    (seconds, Patience::by(Duration::from_secs(10), move || Duration::from_secs(clock.load(Ordering::SeqCst))))
}

#[test]
fn a_device_that_hangs_loses_its_jobs_to_another_i6() {
    let (seconds, patience) = standing_clock();
    let silent = Faults { is_silent: true, ..Faults::default() };
    // The healthy one gives nothing back before the silent one has all that it takes at once.
    let healthy = Faults { gate: Some((silent.uploads.clone(), 3)), ..Faults::default() };
    let seats = vec![seat("fake:0", 1 << 20, &silent), seat("fake:1", 1 << 20, &healthy)];
    let pinned = Ledger::default();
    let fleet = Fleet::start(seats, CPU, pinned.opening(), patience).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| run_all(&fleet, 20, 8));
        while fleet.reports()[1].jobs < 17 {
            std::thread::yield_now();
        }
        let made = pinned.made.load(Ordering::SeqCst);
        assert!(fleet.reports()[0].lost.is_none(), "time stands");
        seconds.store(100, Ordering::SeqCst);
        while fleet.reports()[1].jobs < 20 {
            std::thread::yield_now();
        }
        assert_eq!(pinned.made.load(Ordering::SeqCst), made, "no memory is pinned beside a device that hangs");
    });
    let reports = fleet.reports();
    assert!(reports[0].lost.as_deref().is_some_and(|l| l.starts_with("it hangs: nothing came back for 10s")), "{reports:?}");
    assert!(reports[1].lost.is_none() && reports[0].jobs == 0, "{reports:?}");
    assert_eq!((fleet.failed_over.load(Ordering::Relaxed), fleet.room()), (3, Some(1 << 20)));
    drop(fleet);
    assert_eq!(pinned.freed.load(Ordering::SeqCst), 0, "memory that the device may still write to was given back");
}

#[test]
fn a_call_that_does_not_return_holds_up_nobody_i7() {
    let (seconds, patience) = standing_clock();
    let release = Arc::new(AtomicBool::new(false));
    let stuck = Faults { stuck_until: Some(release.clone()), ..Faults::default() };
    let pinned = Ledger::default();
    let fleet = Fleet::start(vec![seat("fake:0", 1 << 20, &stuck)], CPU, pinned.opening(), patience).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One is inside the call, the others find the queue open and nobody at its end.
        let workers: Vec<_> = (0..3).map(|_| scope.spawn(|| run_one(&fleet, 1, BYTES, &stop))).collect();
        while stuck.uploads.load(Ordering::SeqCst) < 1 {
            std::thread::yield_now();
        }
        seconds.store(100, Ordering::SeqCst);
        for worker in workers {
            assert_eq!(worker.join().unwrap(), Err(Undone::NoneLeft));
        }
    });
    assert!(fleet.losses().starts_with("fake:0: it hangs"), "{}", fleet.losses());
    drop(fleet);
    assert_eq!(pinned.freed.load(Ordering::SeqCst), 0, "to unpin memory is a call that may wait for the device");
    release.store(true, Ordering::SeqCst);
}

#[test]
fn a_device_that_never_opens_holds_up_nobody() {
    let (seconds, patience) = standing_clock();
    let release = Arc::new(AtomicBool::new(false));
    let held = release.clone();
    let open = move || {
        while !held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        Ok((Box::new(PlainDevice::default()) as Box<dyn Device>, None))
    };
    let seat = Seat { label: "fake:0".to_owned(), budget: 1 << 20, open: Box::new(open) };
    let fleet = Fleet::start(vec![seat], CPU, unpinned(), patience).unwrap();
    seconds.store(100, Ordering::SeqCst);
    assert_eq!(run_one(&fleet, 1, BYTES, &AtomicBool::new(false)), Err(Undone::NoneLeft));
    drop(fleet);
    release.store(true, Ordering::SeqCst);
}

#[test]
fn the_faster_device_does_more() {
    let fast = Faults::default();
    // The slow one gives nothing back before the fast one has done twenty.
    let slow = Faults { gate: Some((fast.passed.clone(), 20)), ..Faults::default() };
    let fleet =
        Fleet::start(vec![seat("fake:0", 1 << 20, &slow), seat("fake:1", 1 << 20, &fast)], CPU, unpinned(), patient()).unwrap();
    run_all(&fleet, 24, 8);
    let reports = fleet.reports();
    assert!(reports[1].jobs >= 20 && reports[0].jobs + reports[1].jobs == 24, "{reports:?}");
    assert_eq!(slow.forced.load(Ordering::SeqCst), 0);
}

#[test]
fn a_stopped_worker_does_not_wait_for_a_device() {
    let faults = Faults { gate: Some((Arc::default(), 1)), ..Faults::default() };
    let fleet = Fleet::start(vec![seat("fake:0", 1 << 20, &faults)], CPU, unpinned(), patient()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..5).map(|_| scope.spawn(|| run_one(&fleet, 1, BYTES, &stop))).collect();
        while faults.uploads.load(Ordering::SeqCst) < 3 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::SeqCst);
        for worker in workers {
            assert_eq!(worker.join().unwrap(), Err(Undone::Stopped));
        }
    });
    // Closing it waits for what is in flight.
    faults.gate.as_ref().unwrap().0.store(1, Ordering::SeqCst);
    drop(fleet);
    assert_eq!(faults.forced.load(Ordering::SeqCst), 0);
}

/// The CPU as a machine full of devices, each with its faults.
struct ShimHardware(Vec<Faults>);

fn shims(faults: Vec<Faults>) -> Arc<dyn Hardware> {
    Arc::new(ShimHardware(faults))
}

impl Hardware for ShimHardware {
    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        let arch = Arch { major: 9, minor: 0 };
        let device = |ordinal| DeviceInfo { ordinal, name: "shim".to_owned(), arch, total_bytes: 1 << 30, driver: 0 };
        Ok((0..self.0.len() as u16).map(device).collect())
    }

    fn compiler(&self) -> Result<Arch, String> {
        Ok(Arch { major: 7, minor: 5 })
    }

    fn open(&self, info: &DeviceInfo) -> Result<(Box<dyn Device>, Option<u64>), DeviceError> {
        let faults = self.0[usize::from(info.ordinal)].clone();
        Ok((Box::new(Trial::new(Box::new(ShimDevice::new(u64::from(info.ordinal))), faults)), None))
    }

    fn pinner(&self, _: &[DeviceInfo]) -> Option<Box<dyn Pinner>> {
        None
    }
}

/// All files below a folder, by name.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut list = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => list.extend(files(&path).into_iter().map(|(p, b)| (Path::new(path.file_name().unwrap()).join(p), b))),
            // Metadata holds the job file, [engine] and all.
            false if path.extension().is_some_and(|e| e == "json") => {}
            false => list.push((PathBuf::from(path.file_name().unwrap()), std::fs::read(&path).unwrap())),
        }
    }
    list.sort();
    list
}

use crate::engine::report::RunReport;
use crate::engine::{Silent, resume};
use crate::plan::machine::Machine;
use crate::plan::{Plan, PlanError};

/// Runs the KS job of the tests with these lines in `[engine]`; its report and its output's files.
fn run_job(name: &str, engine: &str, hardware: Arc<dyn Hardware>) -> Result<(RunReport, Vec<(PathBuf, Vec<u8>)>), String> {
    let folder = std::env::temp_dir().join(format!("halostream-gpu-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let text = format!(
        "[input]\npath = 'sample:slc'\nshape = [40, 60, 9]\nchunks = [16, 16, 9]\nseed = 3\n\n[[step]]\nop = 'ks_test'\n\
         half_window = [3, 2]\n\n[output]\npath = 'out.zarr'\ncodec = 'none'\n\n[engine]\nmemory = '300MiB'\nworkers = 3\n\
         block = [16, 32]\n{engine}\n"
    );
    let path = folder.join("job.toml");
    std::fs::write(&path, text).unwrap();
    let result = (|| {
        let job = crate::config::job::read(&path, &[]).map_err(|problems| format!("{problems:?}"))?;
        let machine = Machine { cores: 2, memory_available: 1 << 30 };
        let plan = Plan::on(&job, &machine, hardware).map_err(|e: Vec<PlanError>| e[0].to_string())?;
        let plan = Arc::new(plan);
        let prepared = crate::engine::publish::prepare(&plan, false).map_err(|e| e.to_string())?;
        let crate::engine::publish::Prepared::Ready { staging, sinks, done, .. } = prepared else { panic!("a new output") };
        let stop = Arc::new(AtomicBool::new(false));
        match resume(plan, sinks, done, Arc::new(Silent), stop) {
            Ok(report) => {
                staging.publish().map_err(|e| e.to_string())?;
                Ok((report, files(&folder.join("out.zarr"))))
            }
            Err(error) => {
                staging.abandon();
                Err(error.to_string())
            }
        }
    })();
    std::fs::remove_dir_all(&folder).unwrap();
    result
}

#[test]
fn whole_jobs_on_devices_give_the_cpus_files_i1_i9() {
    if compiler().is_none() {
        return skipped("jobs on the CPU as a device, no C++ compiler here");
    }
    let (cpu, want) = run_job("cpu", "devices = ['cpu']", shims(vec![Faults::default()])).unwrap();
    assert!(cpu.devices.is_empty() && !want.is_empty());
    let jobs = |report: &RunReport| report.devices.iter().map(|d| d.jobs).sum::<u64>();
    let check = |name: &str, engine: &str, hardware: Vec<Faults>| {
        let (report, got) = run_job(name, engine, shims(hardware)).unwrap();
        assert!(got == want, "{name}: other files than the CPU's");
        assert_eq!((report.arithmetic, report.job_hash == cpu.job_hash), ("cpu", true), "{name}: exact, so the same job");
        report
    };
    let report = check("auto", "devices = 'auto'", vec![Faults::default()]);
    assert_eq!((report.devices.len(), jobs(&report)), (1, 6));
    // Two actors on one device.
    let report = check("twice", "devices = ['cuda:0', 'cuda:0']", vec![Faults::default()]);
    assert_eq!((report.devices.len(), jobs(&report)), (2, 6));
    // Whoever is free: the sum of devices and CPU is all there is.
    let report = check("mixed", "devices = ['cpu', 'cuda:0', 'cuda:1']", vec![Faults::default(); 2]);
    assert!(jobs(&report) <= 6);
    // A device with less memory than it says halves its blocks, and says so.
    let small = Faults { capacity: Some(60_000), ..Faults::default() };
    let report = check("small", "devices = ['cuda:0']", vec![small]);
    assert!(report.devices[0].out_of_memory >= 1 && report.device_blocks_halved >= 1 && jobs(&report) > 6, "{report:?}");
    // A budget does so without trying.
    let report = check("budget", "devices = ['cuda:0']\ndevice_memory = 60000", vec![Faults::default()]);
    assert!(report.devices[0].out_of_memory == 0 && jobs(&report) > 6 && report.devices[0].peak_device_bytes <= 60_000);
    // Lost at once: another device, or the CPU where the job allows it.
    let dead = Faults { launches: Some(0), ..Faults::default() };
    let report = check("failover", "devices = ['cuda:0', 'cuda:1']", vec![dead.clone(), Faults::default()]);
    assert!(report.devices[1].jobs == 6 && report.devices[1].lost.is_none(), "{report:?}");
    let late = Faults { launches: Some(5), ..Faults::default() };
    let report = check("fallback", "devices = ['cuda:0']\nfallback = 'cpu'", vec![late]);
    assert!(report.devices[0].lost.is_some() && jobs(&report) <= 2, "{report:?}");
    // Hung: the CPU goes on without waiting for it.
    let silent = Faults { is_silent: true, ..Faults::default() };
    let report = check("hung", "devices = ['cuda:0']\nfallback = 'cpu'\ndevice_timeout = '50ms'", vec![silent]);
    assert!(report.devices[0].lost.as_deref().is_some_and(|l| l.starts_with("it hangs")) && jobs(&report) == 0, "{report:?}");
    let message = run_job("dead", "devices = ['cuda:0']", shims(vec![dead])).unwrap_err();
    assert!(message.contains("no device is left (cuda:0: it fell off the bus)") && message.contains("fallback"), "{message}");
    // Refused up front.
    let message = run_job("tiny", "devices = ['cuda:0']\ndevice_memory = 1000", shims(vec![Faults::default()])).unwrap_err();
    assert!(message.starts_with("engine.device_memory = 1000B is below the ") && message.contains("`ks_test`"), "{message}");
    let message = run_job("absent", "devices = ['cuda:1']", shims(vec![Faults::default()])).unwrap_err();
    assert!(message.contains("\"cuda:1\" is not there, found are \"cuda:0\""), "{message}");
}

#[test]
fn whole_jobs_on_a_gpu_give_the_cpus_files_i9() {
    if super::test_gpu().is_none() {
        return skipped("jobs on a GPU, none here");
    }
    let on = |name: &str, engine: &str| run_job(name, engine, Arc::new(super::cuda::Cuda)).unwrap();
    let (_, want) = on("gpu-cpu", "devices = ['cpu']");
    for engine in ["devices = ['cuda:0']", "devices = ['cuda:0', 'cuda:0']", "devices = ['cpu', 'cuda:0']"] {
        let (report, got) = on("gpu", engine);
        assert!(got == want, "{engine}: other files than the CPU's");
        assert!(report.devices.iter().all(|d| d.lost.is_none()), "{report:?}");
    }
}
