//! Operators, sources and sinks that count, stall and fail; jobs in this process under a watchdog.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use halostream::array::boundary::{Origin, origin};
use halostream::array::{Block, Boundary, DType, Rule};
use halostream::config::{self, CodecName, JobSpec};
use halostream::engine::report::RunReport;
use halostream::engine::{self, JobError};
use halostream::operators::{
    Binding, Computed, InputBinding, Kind, MapOperator, MapTask, Operator, OperatorError, OutputBinding, Padded, StepInput,
    Workspace,
};
use halostream::plan::Plan;
use halostream::reader::{ChunkRead, Source, SourceError, SourceMeta};
use halostream::writer::{OutputLayout, Sink, SinkError, zarr};

use crate::common::{Array, Random, codec, machine};

/// Seconds after which a job is taken to hang.
const WATCHDOG: u64 = 60;

/// Tests that count threads run alone.
static THREADS: RwLock<()> = RwLock::new(());

pub fn shared() -> RwLockReadGuard<'static, ()> {
    THREADS.read().unwrap_or_else(|e| e.into_inner())
}

pub fn alone() -> RwLockWriteGuard<'static, ()> {
    THREADS.write().unwrap_or_else(|e| e.into_inner())
}

/// What happens inside an operator, a source or a sink, called with the number of the call (from 0).
pub type Hook = Arc<dyn Fn(u64, &AtomicBool) -> Result<(), String> + Send + Sync>;

pub fn quiet() -> Hook {
    Arc::new(|_, _| Ok(()))
}

/// The sum over a window of the first input, plus every other input (broadcast), in f64. Tests use whole numbers: any
/// order of additions gives the same bits.
#[derive(Clone)]
pub struct Window {
    pub depth: Vec<(u64, u64)>,
    pub hook: Hook,
    pub calls: Arc<AtomicU64>,
}

impl Window {
    pub fn new(depth: &[(u64, u64)]) -> Self {
        Self { depth: depth.to_vec(), hook: quiet(), calls: Arc::default() }
    }

    pub fn with(depth: &[(u64, u64)], hook: Hook) -> Self {
        Self { hook, ..Self::new(depth) }
    }
}

impl Operator for Window {
    fn bind(&self, inputs: &[StepInput]) -> Result<Binding, String> {
        let first = &inputs[0];
        let rank = first.meta.rank();
        let boundary = first.boundary.clone().unwrap_or_else(|| vec![[Rule::Nearest; 2]; rank]);
        let mut bound = vec![InputBinding { depth: self.depth.clone(), boundary, ..InputBinding::plain(rank) }];
        for input in &inputs[1..] {
            bound.push(InputBinding::broadcast(&input.meta, &first.meta)?);
        }
        Ok(Binding {
            reference: 0,
            inputs: bound,
            outputs: vec![OutputBinding::like("sum", DType::F64, &first.meta)],
            whole: Vec::new(),
            kind: Kind::Map(Arc::new(self.clone())),
            is_exact: false,
            child_bytes: 0,
        })
    }
}

fn cell(block: &Block, index: &[usize]) -> f64 {
    let (bytes, offset) = block.raw();
    let at = offset + index.iter().zip(block.strides()).map(|(&i, s)| i as isize * s).sum::<isize>();
    f64::from_ne_bytes(bytes[at as usize..at as usize + 8].try_into().expect("eight bytes"))
}

/// All positions of a box, last axis fastest.
pub fn positions(lengths: &[usize]) -> Vec<Vec<usize>> {
    lengths
        .iter()
        .fold(vec![vec![]], |all, &n| all.iter().flat_map(|p| (0..n).map(move |i| [p.clone(), vec![i]].concat())).collect())
}

impl MapOperator for Window {
    fn apply(
        &self,
        inputs: Vec<Padded>,
        task: &MapTask<'_>,
        work: &mut Workspace<'_>,
    ) -> Result<Vec<Option<Computed>>, OperatorError> {
        let stop = work.stop;
        (self.hook)(self.calls.fetch_add(1, Ordering::SeqCst), stop).map_err(OperatorError::Data)?;
        if stop.load(Ordering::Relaxed) {
            return Err(halostream::array::budget::BudgetError::Stopped.into());
        }
        let region = &task.outputs[0];
        let mut buffer = work.buffer(region.count() * 8)?;
        let out: &mut [f64] = buffer.as_mut_slice_of();
        let first = &inputs[0];
        for (n, at) in positions(&region.shape()).into_iter().enumerate() {
            // The window, clipped to what is there (rule `none`).
            let mut low = Vec::new();
            let mut lengths = Vec::new();
            for axis in 0..at.len() {
                let x = region.start[axis] + at[axis] as i64;
                let (a, b) = first.region.axis(axis);
                let from = (x - self.depth[axis].0 as i64).max(a);
                low.push((from - a) as usize);
                lengths.push(((x + self.depth[axis].1 as i64 + 1).min(b) - from) as usize);
            }
            let sum: f64 = positions(&lengths)
                .iter()
                .map(|d| cell(&first.block, &d.iter().zip(&low).map(|(d, l)| d + l).collect::<Vec<_>>()))
                .sum();
            let others: f64 = inputs[1..]
                .iter()
                .map(|other| {
                    let rank = other.region.rank();
                    let lead = at.len() - rank;
                    let index: Vec<usize> = (0..rank)
                        .map(|k| {
                            let x = region.start[lead + k] + at[lead + k] as i64;
                            if (other.region.start[k]..other.region.stop[k]).contains(&x) {
                                (x - other.region.start[k]) as usize
                            } else {
                                0
                            }
                        })
                        .collect();
                    cell(&other.block, &index)
                })
                .sum();
            out[n] = sum + others;
        }
        let block = Block::new(buffer, DType::F64, region.shape());
        Ok(vec![Some(Computed { region: region.clone(), block })])
    }

    fn scratch_bytes(&self, _core: &[u64]) -> u64 {
        0
    }
}

/// The same on whole arrays, one cell at a time: the definition.
pub fn naive_window(x: &Array, depth: &[(u64, u64)], rules: &Boundary, others: &[&Array]) -> Array {
    let values = x.values::<f64>();
    let shape: Vec<usize> = x.shape.iter().map(|&n| n as usize).collect();
    let windows: Vec<usize> = depth.iter().map(|d| (d.0 + d.1 + 1) as usize).collect();
    let windows = positions(&windows);
    let mut out = Vec::with_capacity(values.len());
    for at in positions(&shape) {
        let mut sum = 0.0;
        for d in &windows {
            let (mut index, mut constant, mut absent) = (0, None, false);
            for axis in 0..shape.len() {
                let y = at[axis] as i64 + d[axis] as i64 - depth[axis].0 as i64;
                match origin(y, shape[axis] as i64, &rules[axis]) {
                    Origin::Cell(c) => index = index * shape[axis] + c as usize,
                    Origin::Constant(side) => {
                        let Rule::Constant(v) = rules[axis][side] else { panic!("a constant") };
                        constant = Some(v);
                    }
                    Origin::Absent => absent = true,
                }
            }
            if !absent {
                sum += constant.unwrap_or_else(|| values[index]);
            }
        }
        for other in others {
            let rank = other.shape.len();
            let index = (0..rank).fold(0, |n, k| {
                let len = other.shape[k] as usize;
                n * len + if len == 1 { 0 } else { at[at.len() - rank + k] }
            });
            sum += other.values::<f64>()[index];
        }
        out.push(sum);
    }
    Array::new(&x.shape, &out)
}

/// Sums over axes, which stay with length 1.
pub fn naive_sum(x: &Array, axes: &[usize]) -> Array {
    let values = x.values::<f64>();
    let shape: Vec<usize> = x.shape.iter().map(|&n| n as usize).collect();
    let kept: Vec<u64> = (0..shape.len()).map(|a| if axes.contains(&a) { 1 } else { x.shape[a] }).collect();
    let mut out = vec![0.0; kept.iter().product::<u64>() as usize];
    for (n, at) in positions(&shape).iter().enumerate() {
        let index = at.iter().zip(&kept).fold(0, |i, (&x, &len)| i * len as usize + if len == 1 { 0 } else { x });
        out[index] += values[n];
    }
    Array::new(&kept, &out)
}

pub fn whole_numbers(r: &mut Random, shape: &[u64]) -> Array {
    let n = shape.iter().product::<u64>();
    Array::new::<f64>(shape, &(0..n).map(|_| r.range(0, 40) as f64 - 20.0).collect::<Vec<_>>())
}

/// A store that has no chunks: all that a plan needs.
pub fn empty_store(path: &Path, shape: &[u64], chunks: &[u64], dtype: DType) {
    let layout = OutputLayout {
        shape: shape.to_vec(),
        dtype,
        chunks: chunks.to_vec(),
        shards: None,
        codec: codec(CodecName::None),
        zarr_format: 3,
        dimension_names: vec![None; shape.len()],
        attributes: Default::default(),
        points: None,
        is_remote: false,
    };
    zarr::create(path, "", layout, false).expect("a store").finish().expect("finished");
}

/// A job whose steps `s0`, `s1`, ... are written as `identity` and become the given operators; other steps stay.
pub fn job(text: &str, folder: &Path, steps: &[Window]) -> JobSpec {
    let mut job = config::job::parse(text, folder, &[], &|_| None).unwrap_or_else(|p| panic!("{p:?}\n{text}"));
    for step in &mut job.steps {
        if let Some(n) = step.name.strip_prefix('s').and_then(|n| n.parse::<usize>().ok()) {
            step.operator = Box::new(steps[n].clone());
        }
    }
    job
}

pub fn plan_of(job: &JobSpec) -> Plan {
    Plan::new(job, &machine()).unwrap_or_else(|e| panic!("{}", e.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))
}

/// A source that counts the reads of each chunk, and may fail.
pub struct Counting {
    pub inner: Arc<dyn Source>,
    pub reads: Mutex<HashMap<Vec<u64>, u64>>,
    pub calls: AtomicU64,
    pub hook: Hook,
}

impl Counting {
    pub fn most(&self) -> u64 {
        self.reads.lock().expect("no panic").values().copied().max().unwrap_or(0)
    }

    pub fn total(&self) -> u64 {
        self.reads.lock().expect("no panic").values().sum()
    }
}

impl Source for Counting {
    fn meta(&self) -> &SourceMeta {
        self.inner.meta()
    }

    fn read_chunk(&self, chunk: &[u64], out: &mut [u8], transient: &mut Vec<u8>) -> Result<ChunkRead, SourceError> {
        let go = AtomicBool::new(false);
        (self.hook)(self.calls.fetch_add(1, Ordering::SeqCst), &go)
            .map_err(|reason| SourceError::Corrupt { place: "test".to_owned(), reason })?;
        *self.reads.lock().expect("no panic").entry(chunk.to_vec()).or_default() += 1;
        self.inner.read_chunk(chunk, out, transient)
    }
}

/// Wraps every job input of the plan's first phase.
pub fn count_reads(plan: &mut Plan, hook: Hook) -> Vec<Arc<Counting>> {
    let mut found = Vec::new();
    let mut feeds = plan.phases[0].feeds.to_vec();
    for feed in &mut feeds {
        let inner = feed.feed.source.clone();
        let counting = Arc::new(Counting { inner, reads: Mutex::default(), calls: AtomicU64::new(0), hook: hook.clone() });
        feed.feed.source = counting.clone();
        found.push(counting);
    }
    let phase = &mut plan.phases[0];
    phase.feeds = feeds.into();
    if let Some(rest) = &mut phase.rest {
        rest.feeds = phase.feeds.clone();
    }
    found
}

/// A sink in memory: keeps objects, counts, stalls and fails as its hook says.
pub struct Memory {
    layout: OutputLayout,
    objects: Mutex<HashMap<Vec<u64>, Vec<u8>>>,
    pub puts: AtomicU64,
    pub finished: AtomicBool,
    hook: Hook,
}

impl Memory {
    /// The array, put together; every object must be there.
    pub fn array(&self) -> Array {
        let size = self.layout.dtype.size();
        let shape: Vec<usize> = self.layout.shape.iter().map(|&n| n as usize).collect();
        let full: Vec<usize> = self.layout.object_shape().iter().map(|&n| n as usize).collect();
        let mut bytes = vec![0u8; shape.iter().product::<usize>() * size];
        let objects = self.objects.lock().expect("no panic");
        for (n, at) in positions(&shape).iter().enumerate() {
            let object: Vec<u64> = at.iter().zip(&full).map(|(x, f)| (x / f) as u64).collect();
            let inside = at.iter().zip(&full).fold(0, |i, (x, f)| i * f + x % f);
            let values = objects.get(&object).unwrap_or_else(|| panic!("object {object:?} was not put"));
            bytes[n * size..(n + 1) * size].copy_from_slice(&values[inside * size..(inside + 1) * size]);
        }
        Array { shape: self.layout.shape.clone(), dtype: self.layout.dtype, bytes }
    }
}

impl Sink for Memory {
    fn layout(&self) -> &OutputLayout {
        &self.layout
    }

    fn transient_bytes(&self) -> u64 {
        0
    }

    fn put(&self, object: &[u64], values: &[u8]) -> Result<u64, SinkError> {
        let go = AtomicBool::new(false);
        (self.hook)(self.puts.fetch_add(1, Ordering::SeqCst), &go)
            .map_err(|reason| SinkError::Encode { place: "test".to_owned(), reason })?;
        assert_eq!(values.len() as u64, self.layout.object_bytes(), "a whole object");
        let before = self.objects.lock().expect("no panic").insert(object.to_vec(), values.to_vec());
        assert!(before.is_none(), "object {object:?} is put twice");
        Ok(values.len() as u64)
    }

    fn resume(&self, _among: &std::ops::Range<u64>, _trusts: &dyn Fn(u64) -> bool) -> Result<HashSet<u64>, SinkError> {
        let objects = self.objects.lock().expect("no panic");
        Ok(objects.keys().map(|object| self.layout.object_number(object)).collect())
    }

    fn finish(&self) -> Result<u64, SinkError> {
        self.finished.store(true, Ordering::SeqCst);
        Ok(0)
    }
}

pub fn memory_sinks(plan: &Plan, hook: &Hook) -> Vec<Arc<Memory>> {
    let sink = |layout: &OutputLayout| {
        Arc::new(Memory {
            layout: layout.clone(),
            objects: Mutex::default(),
            puts: AtomicU64::new(0),
            finished: AtomicBool::new(false),
            hook: hook.clone(),
        })
    };
    plan.outputs.iter().map(|o| sink(&o.layout)).collect()
}

/// A door that is shut until somebody opens it.
#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    moved: Condvar,
}

impl Gate {
    pub fn pass(&self) {
        let mut open = self.open.lock().expect("no panic");
        while !*open {
            open = self.moved.wait(open).expect("no panic");
        }
    }

    pub fn open(&self) {
        *self.open.lock().expect("no panic") = true;
        self.moved.notify_all();
    }
}

/// Opens a gate when its test ends, so that a test that fails leaves no job behind.
pub struct Opens(pub Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A job on a thread of its own.
pub struct Running {
    pub stop: Arc<AtomicBool>,
    pub leased: Arc<AtomicU64>,
    result: flume::Receiver<Result<RunReport, JobError>>,
}

struct Leases(Arc<AtomicU64>);

impl engine::Observer for Leases {
    fn progress(&self, now: &engine::Progress) {
        self.0.fetch_max(now.leased_bytes, Ordering::SeqCst);
    }
}

pub fn start(plan: Arc<Plan>, sinks: Vec<Arc<dyn Sink>>) -> Running {
    let (tx, result) = flume::bounded(1);
    let stop = Arc::new(AtomicBool::new(false));
    let leased = Arc::new(AtomicU64::new(0));
    let (own, seen) = (stop.clone(), Arc::new(Leases(leased.clone())));
    std::thread::Builder::new()
        .name("job".to_owned())
        .spawn(move || {
            let _ = tx.send(engine::run(plan, sinks, seen, own));
        })
        .expect("a thread");
    Running { stop, leased, result }
}

impl Running {
    /// The job's end; a job that does not end in time is stopped and told as such.
    pub fn end(self) -> Result<Result<RunReport, JobError>, String> {
        match self.result.recv_timeout(Duration::from_secs(WATCHDOG)) {
            Ok(result) => Ok(result),
            Err(_) => {
                self.stop.store(true, Ordering::SeqCst);
                Err("the job hangs".to_owned())
            }
        }
    }
}

/// Runs a plan into memory; an error says what went wrong, hanging included.
pub fn run_plan(plan: Plan) -> Result<(RunReport, Vec<Arc<Memory>>), String> {
    run_with(plan, quiet())
}

pub fn run_with(plan: Plan, hook: Hook) -> Result<(RunReport, Vec<Arc<Memory>>), String> {
    let sinks = memory_sinks(&plan, &hook);
    let own = sinks.iter().map(|s| s.clone() as Arc<dyn Sink>).collect();
    let report = start(Arc::new(plan), own).end()?.map_err(|e| e.to_string())?;
    Ok((report, sinks))
}

/// Threads of stages that live in this process.
pub fn stage_threads() -> usize {
    let names = ["reader-", "halo-", "compute-", "trim-", "writer-"];
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    tasks
        .flatten()
        .filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok())
        .filter(|name| names.iter().any(|n| name.starts_with(n)))
        .count()
}

/// A thread that said it is done may take a moment to go.
#[track_caller]
pub fn expect_no_threads() {
    let since = Instant::now();
    while stage_threads() > 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "{} threads of stages are left", stage_threads());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a number has not moved for a while.
pub fn settled(of: impl Fn() -> u64) -> u64 {
    let (mut last, mut since) = (of(), Instant::now());
    while since.elapsed() < Duration::from_millis(250) {
        std::thread::sleep(Duration::from_millis(5));
        let now = of();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}
