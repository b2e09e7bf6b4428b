//! `external` against a child without Python (`examples/child.rs`): blocks there and back, and every way it can go wrong.

mod common;
#[path = "external/inputs.rs"]
mod inputs;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use halostream::array::budget::BudgetError;
use halostream::array::{Block, Boundary, DType, Region, Rule};
use halostream::config::table::{Problems, Table};
use halostream::operators::{
    self, ArrayMeta, Binding, Computed, Kind, LaidLength, MapOperator, MapTask, OperatorError, OutAxis, Padded, StepInput,
    Workspace,
};
use toml::de::DeTable;

fn child() -> String {
    common::child().display().to_string()
}

/// A step from the text of its table, with the test child as its command.
fn build(text: &str) -> Box<dyn operators::Operator> {
    let text = format!("command = [{:?}]\n{text}", child());
    let parsed = DeTable::parse(&text).unwrap();
    let problems = Problems::new(&text);
    let mut table = Table::new(parsed.get_ref(), parsed.span(), "step", problems.clone());
    let built = (operators::find("external").unwrap().build)(&mut table);
    table.finish();
    assert!(problems.is_empty(), "{:?}", problems.take());
    built.unwrap()
}

fn input(name: &str, shape: &[u64], dtype: DType) -> StepInput {
    StepInput { meta: ArrayMeta::plain(name, shape, dtype), boundary: None, depth: None }
}

fn bind(text: &str, inputs: &[StepInput]) -> Binding {
    build(text).bind(inputs).unwrap()
}

fn map(binding: &Binding) -> Arc<dyn MapOperator> {
    let Kind::Map(map) = &binding.kind else { panic!("external is a map") };
    map.clone()
}

/// Values that differ everywhere.
fn ramp(start: i64, count: usize) -> Vec<f32> {
    (0..count).map(|i| start as f32 + 0.5 * i as f32).collect()
}

/// A padded 2-D input whose block covers `region`.
fn padded(region: &[(i64, i64)]) -> Padded {
    let region = Region::from_ranges(region);
    let values = ramp(region.start[0], region.count());
    Padded { block: Block::from_values(&region.shape(), &values), region }
}

struct Call<'a> {
    number: u64,
    worker: usize,
    core: Region,
    outputs: Vec<Region>,
    wanted: Vec<bool>,
    stop: &'a AtomicBool,
}

static GO: AtomicBool = AtomicBool::new(false);

impl Call<'static> {
    /// One output, which is the core.
    fn new(core: &[(i64, i64)]) -> Self {
        let core = Region::from_ranges(core);
        Self { number: 7, worker: 0, outputs: vec![core.clone()], core, wanted: vec![true], stop: &GO }
    }
}

impl Call<'_> {
    fn on(&self, map: &dyn MapOperator, inputs: Vec<Padded>) -> Result<Vec<Option<Computed>>, OperatorError> {
        let task =
            MapTask { number: self.number, core: &self.core, outputs: &self.outputs, wanted: &self.wanted, worker: self.worker };
        map.apply(inputs, &task, &mut Workspace::unbounded(self.stop))
    }
}

/// The only output.
fn one(result: Result<Vec<Option<Computed>>, OperatorError>) -> Computed {
    let mut outputs = result.unwrap();
    assert_eq!(outputs.len(), 1);
    outputs.remove(0).unwrap()
}

/// The message of a faulty function, for a 10 x 10 core with one cell of halo and a declared `dtype`.
fn fault(function: &str, more: &str) -> String {
    let dtype = if more.contains("dtype") { "" } else { "dtype = \"float64\"" };
    let params = if more.contains("params") { String::new() } else { format!("params = {{ function = {function:?} }}") };
    let binding = bind(&format!("depth = 1\n{dtype}\n{params}\n{more}"), &[input("x", &[40, 30], DType::F32)]);
    let result = Call::new(&[(10, 20), (0, 10)]).on(&*map(&binding), vec![padded(&[(9, 21), (-1, 11)])]);
    match result.unwrap_err() {
        OperatorError::Data(text) | OperatorError::Passing(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn padded_blocks_come_back_with_their_halo() {
    let binding = bind("depth = 2\ndtype = \"float32\"", &[input("x", &[40, 30], DType::F32)]);
    assert_eq!(binding.outputs[0].axes, [OutAxis::Carried(0), OutAxis::Carried(1)]);
    assert_eq!((binding.outputs[0].name.as_str(), binding.outputs[0].dtype), ("output", DType::F32));
    assert_eq!(binding.inputs[0].depth, [(2, 2), (2, 2)]);
    assert_eq!(binding.inputs[0].boundary, vec![[Rule::None; 2]; 2]);
    assert_eq!(binding.child_bytes, 1 << 30);
    let map = map(&binding);
    // Rule `none`: the padded region is clipped at the array's start.
    let x = padded(&[(0, 12), (3, 17)]);
    let got = one(Call::new(&[(0, 10), (5, 15)]).on(&*map, vec![x.clone()]));
    assert_eq!(got.region, x.region);
    assert_eq!(got.block.bytes(), x.block.bytes());
    assert!(map.returns_halo(), "the plan counts the halo of the returned block");
    map.close(0);
}

#[test]
fn many_blocks_go_through_one_child_per_worker() {
    let binding = bind("dtype = \"float64\"\nparams = { function = \"pid\" }", &[input("x", &[400, 30], DType::F32)]);
    let map = map(&binding);
    let mut pids = Vec::new();
    for n in 0..40 {
        let mut call = Call::new(&[(10 * n, 10 * n + 10), (0, 30)]);
        (call.number, call.worker) = (n as u64, n as usize % 2);
        let got = one(call.on(&*map, vec![padded(&[(10 * n, 10 * n + 10), (0, 30)])]));
        pids.push(got.block.values::<f64>().unwrap()[0]);
    }
    assert_ne!(pids[0], pids[1]);
    assert!(pids.iter().step_by(2).all(|p| *p == pids[0]) && pids.iter().skip(1).step_by(2).all(|p| *p == pids[1]));
    map.close(0);
    map.close(1);
    assert!(!PathBuf::from(format!("/proc/{}", pids[0])).exists(), "closing ends the child");
}

#[test]
fn strided_inputs_arrive_in_c_order() {
    let binding = bind("dtype = \"float64\"\nparams = { function = \"add_one\" }", &[input("x", &[500, 300], DType::F32)]);
    let map = map(&binding);
    let whole = padded(&[(0, 500), (0, 300)]);
    let part = Region::from_ranges(&[(3, 490), (10, 299)]);
    let views = [(whole.block.cut(&whole.region, &part), part), (whole.block.transposed(&[1, 0]), whole.region.clone())];
    for (block, mut region) in views {
        if block.shape() == [300, 500] {
            region = Region::from_ranges(&[(0, 300), (0, 500)]);
        }
        assert!(!block.is_contiguous());
        let mut bytes = vec![0; block.byte_len()];
        block.copy_to(&mut bytes);
        let want: Vec<f64> = bytemuck::pod_collect_to_vec::<u8, f32>(&bytes).iter().map(|v| *v as f64 + 1.0).collect();
        let mut call = Call::new(&[(0, 1), (0, 1)]);
        call.outputs = vec![region.clone()];
        let got = one(call.on(&*map, vec![Padded { region, block }]));
        assert_eq!(got.block.values::<f64>().unwrap(), want);
    }
}

#[test]
fn the_header_names_core_and_region() {
    let binding =
        bind("depth = 1\ndtype = \"float64\"\nparams = { function = \"regions\" }", &[input("x", &[40, 30], DType::F32)]);
    let got = one(Call::new(&[(10, 20), (0, 10)]).on(&*map(&binding), vec![padded(&[(9, 21), (-1, 11)])]));
    assert_eq!(got.block.values::<f64>().unwrap()[..3], [9.0, 21.0, 10.0]);
}

#[test]
fn several_inputs_and_outputs() {
    let x = input("x", &[40, 30], DType::F32);
    let total = input("total", &[1], DType::F64);
    let binding = bind("dtype = \"float64\"\nparams = { function = \"divide\" }", &[total.clone(), x.clone()]);
    assert_eq!((binding.reference, &binding.inputs[0].axes), (1, &vec![None]));
    let binding = bind("depth = 1\ndtype = \"float64\"\nparams = { function = \"divide\" }", &[x.clone(), total]);
    assert_eq!(binding.inputs[1].depth, [(0, 0)], "an axis that broadcasts takes no halo");
    let region = Region::from_ranges(&[(0, 1)]);
    let total = Padded { region, block: Block::from_values(&[1], &[4.0f64]) };
    let core = [(10, 12), (0, 2)];
    let got = one(Call::new(&core).on(&*map(&binding), vec![padded(&core), total]));
    assert_eq!(got.block.values::<f64>().unwrap(), [2.5, 2.625, 2.75, 2.875]);

    let outputs = "outputs = [{ name = \"same\", dtype = \"float32\" }, { name = \"twice\", dtype = \"float64\" }]";
    let binding = bind(&format!("{outputs}\nparams = {{ function = \"both\" }}"), &[x]);
    assert_eq!(binding.outputs[1].name, "twice");
    let map = map(&binding);
    let mut call = Call::new(&core);
    call.outputs = vec![call.core.clone(), call.core.clone()];
    call.wanted = vec![true, true];
    let got = call.on(&*map, vec![padded(&core)]).unwrap();
    assert_eq!(got[0].as_ref().unwrap().block.values::<f32>().unwrap(), [10.0, 10.5, 11.0, 11.5]);
    assert_eq!(got[1].as_ref().unwrap().block.values::<f64>().unwrap(), [20.0, 21.0, 22.0, 23.0]);
    call.wanted = vec![false, true];
    let got = call.on(&*map, vec![padded(&core)]).unwrap();
    assert!(got[0].is_none());
    assert_eq!(got[1].as_ref().unwrap().block.values::<f64>().unwrap(), [20.0, 21.0, 22.0, 23.0]);
}

#[test]
fn axes_are_dropped_and_added() {
    let text = "depth = [1, 0]\ndrop_axes = [-1]\nnew_axes = [{ axis = 1, length = 3 }]\ndtype = \"float64\"\nparams = { function = \"ends\" }";
    let binding = bind(text, &[input("x", &[40, 4], DType::F32)]);
    assert_eq!(binding.whole, [1]);
    assert_eq!(binding.outputs[0].axes, [OutAxis::Carried(0), OutAxis::New { len: 3, name: None }]);
    let mut call = Call::new(&[(10, 12), (0, 4)]);
    call.outputs = vec![Region::from_ranges(&[(10, 12), (0, 3)])];
    let got = one(call.on(&*map(&binding), vec![padded(&[(9, 13), (0, 4)])]));
    assert_eq!(got.region, Region::from_ranges(&[(9, 13), (0, 3)]));
    assert_eq!(got.block.shape(), [4, 3]);
    assert_eq!(got.block.values::<f64>().unwrap()[..6], [39.0, 9.0, 10.5, 47.0, 11.0, 12.5]);
}

#[test]
fn untrimmed_blocks_are_laid_as_returned() {
    let mut x = input("x", &[40, 30], DType::F32);
    x.boundary = Some(vec![[Rule::Reflect; 2], [Rule::None; 2]] as Boundary);
    let binding = bind("depth = [2, 1]\ntrim = false\ndtype = \"float32\"", &[x]);
    let length = |depth, rule| LaidLength::Padded { depth, rules: [rule; 2] };
    assert_eq!(
        binding.outputs[0].axes,
        [
            OutAxis::Laid { axis: 0, length: length((2, 2), Rule::Reflect) },
            OutAxis::Laid { axis: 1, length: length((1, 1), Rule::None) }
        ]
    );
    let map1 = map(&binding);
    let mut call = Call::new(&[(10, 20), (0, 10)]);
    call.outputs = vec![Region::from_ranges(&[(14, 28), (0, 11)])];
    let x = padded(&[(8, 22), (0, 11)]);
    let got = one(call.on(&*map1, vec![x.clone()]));
    assert_eq!((&got.region, got.block.bytes()), (&call.outputs[0], x.block.bytes()));

    let text = "depth = 1\nblock_shape = [1, 1]\ndtype = \"float64\"\nparams = { function = \"block_sum\" }";
    let binding = bind(text, &[input("x", &[40, 30], DType::F32)]);
    assert_eq!(binding.outputs[0].axes[1], OutAxis::Laid { axis: 1, length: LaidLength::Fixed(1) });
    let mut call = Call::new(&[(10, 12), (0, 2)]);
    call.outputs = vec![Region::from_ranges(&[(5, 6), (0, 1)])];
    let got = one(call.on(&*map(&binding), vec![padded(&[(10, 12), (0, 2)])]));
    assert_eq!((got.region, got.block.values::<f64>().unwrap()), (call.outputs[0].clone(), &[43.0][..]));
}

#[test]
fn answers_that_do_not_fit_are_named() {
    let text = fault("wrong_shape", "");
    assert!(text.contains("returned `output` with shape [1, 10], expected [12, 12]"), "{text}");
    let text = fault("wrong_dtype", "");
    assert!(text.contains("dtype \"<f4\" (float32), expected \"<f8\" (float64)"), "{text}");
    let text = fault("both", "");
    assert!(text.contains("returned 2 outputs, expected 1"), "{text}");
    let text = fault("error", "");
    assert!(text.contains("ZeroDivisionError: division by zero"), "{text}");
    let text = fault("garbage", "");
    assert!(text.contains("sent \"hello from the user's print\""), "{text}");
    let text = fault("endless", "");
    assert!(text.contains("sent \"xxxx") && text.contains("no end") && text.len() < 1000, "{text}");
    let text = fault("bad_bool", "dtype = \"bool\"");
    assert!(text.contains("holds the byte 2"), "{text}");
    let text = fault("not_ready", "");
    assert!(text.contains("refused to start: no licence"), "{text}");
}

#[test]
fn bytes_beyond_an_answer_are_noticed() {
    let binding = bind("dtype = \"float32\"\nparams = { function = \"too_much\" }", &[input("x", &[40, 30], DType::F32)]);
    let map = map(&binding);
    // They may come after the answer was taken: then the next block finds them.
    let error = (0..2).find_map(|_| Call::new(&[(0, 10), (0, 30)]).on(&*map, vec![padded(&[(0, 10), (0, 30)])]).err());
    let text = error.unwrap().to_string();
    assert!(text.contains("sent \"tail"), "{text}");
}

#[test]
fn a_child_that_dies_twice_fails_the_block() {
    let text = fault("dies", "");
    assert!(text.contains("exited with status 3") && text.contains("something broke inside"), "{text}");
    assert!(text.contains("second, fresh child"), "{text}");
    let text = fault("aborts", "");
    assert!(text.contains("SIGABRT"), "{text}");
    let text = fault("killed", "");
    assert!(text.contains("was killed (SIGKILL; perhaps out of memory)"), "{text}");
}

#[test]
fn a_child_that_dies_once_is_replaced() {
    let marker = std::env::temp_dir().join(format!("halostream-dies-once-{}", std::process::id()));
    let params = format!("params = {{ function = \"dies_once\", marker = {:?} }}", marker.display().to_string());
    let binding = bind(&format!("dtype = \"float32\"\n{params}"), &[input("x", &[40, 30], DType::F32)]);
    let map = map(&binding);
    let x = padded(&[(0, 10), (0, 30)]);
    let got = one(Call::new(&[(0, 10), (0, 30)]).on(&*map, vec![x.clone()]));
    assert!(marker.exists(), "the first child died");
    std::fs::remove_file(&marker).unwrap();
    assert_eq!(got.block.bytes(), x.block.bytes());
    // The marker is gone: the same child dies, and a fresh one does this block too.
    let got = one(Call::new(&[(0, 10), (0, 30)]).on(&*map, vec![x.clone()]));
    std::fs::remove_file(&marker).unwrap();
    assert_eq!(got.block.bytes(), x.block.bytes());
}

#[test]
fn slow_children_are_killed() {
    let began = Instant::now();
    let text = fault("hangs", "timeout = \"300ms\"");
    assert!(text.contains("gave no answer within 300ms"), "{text}");
    assert!(began.elapsed() >= Duration::from_millis(600), "tried twice");
    let text = fault("never_ready", "timeout = \"200ms\"");
    assert!(text.contains("gave no answer within 200ms"), "{text}");
}

#[test]
fn a_child_above_its_memory_is_killed() {
    let more = "dtype = \"float32\"\nchild_memory = \"32MiB\"";
    let text = fault("greedy", &format!("{more}\nparams = {{ function = \"greedy\", seconds = 60 }}"));
    assert!(text.contains("child_memory is 32 MiB"), "{text}");
}

#[test]
fn a_stopped_job_does_not_wait() {
    let stop = AtomicBool::new(false);
    let binding = bind("dtype = \"float32\"\nparams = { function = \"hangs\" }", &[input("x", &[40, 30], DType::F32)]);
    let map = map(&binding);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let call = Call { stop: &stop, ..Call::new(&[(0, 10), (0, 30)]) };
            call.on(&*map, vec![padded(&[(0, 10), (0, 30)])])
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!worker.is_finished());
        stop.store(true, Ordering::Relaxed);
        let error = worker.join().unwrap().unwrap_err();
        assert!(matches!(error, OperatorError::Budget(BudgetError::Stopped)), "{error:?}");
    });
}

#[test]
fn a_child_that_writes_before_it_reads_does_not_hang() {
    // 8 MiB each way, far beyond what two pipes hold.
    let binding = bind(
        "dtype = \"float64\"\ntimeout = \"60s\"\nparams = { function = \"early\" }",
        &[input("x", &[1024, 1024], DType::F64)],
    );
    let region = Region::from_ranges(&[(0, 1024), (0, 1024)]);
    let x = Padded { block: Block::from_values(&[1024, 1024], &vec![1.0f64; 1 << 20]), region };
    let got = one(Call::new(&[(0, 1024), (0, 1024)]).on(&*map(&binding), vec![x]));
    assert!(got.block.values::<f64>().unwrap().iter().all(|v| *v == 0.0));
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let text = "command = [\"./no-such-program\", \"x\"]\ndtype = \"float32\"";
    let parsed = DeTable::parse(text).unwrap();
    let mut table = Table::new(parsed.get_ref(), parsed.span(), "step", Problems::new(text));
    let step = (operators::find("external").unwrap().build)(&mut table).unwrap();
    let binding = step.bind(&[input("x", &[40, 30], DType::F32)]).unwrap();
    let error = Call::new(&[(0, 10), (0, 30)]).on(&*map(&binding), vec![padded(&[(0, 10), (0, 30)])]).unwrap_err();
    assert!(error.to_string().contains("cannot start `./no-such-program x`"), "{error}");
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let x = input("x", &[40, 30], DType::I32);
    let refused = |text: &str, inputs: &[StepInput]| build(&format!("dtype = \"int32\"\n{text}")).bind(inputs).err().unwrap();
    let boundary = |rule| StepInput { boundary: Some(vec![[rule; 2]; 2]), ..x.clone() };
    for (text, inputs, want) in [
        ("depth = [1, 2, 3]", vec![x.clone()], "depth has 3 entries, the array has 2 axes"),
        ("depth = 1", vec![boundary(Rule::Constant(1.5))], "input x: boundary of axis 0: 1.5 does not fit int32"),
        ("drop_axes = [2]", vec![x.clone()], "drop_axes names axis 2, there are 2 (0 to 1)"),
        ("drop_axes = [0, -2]", vec![x.clone()], "drop_axes names axis 0 twice"),
        ("new_axes = [{ axis = 3, length = 1 }]", vec![x.clone()], "new_axes names axis 3, there are 3"),
        ("block_shape = [4]", vec![x.clone()], "block_shape has 1 entries, the output has 2 axes"),
        ("block_shape = [4, 4]\ntrim = true\ndepth = 1", vec![x.clone()], "exclude each other"),
        ("block_shape = [1000000000, 1000000000]", vec![x.clone()], "beyond a TiB"),
        ("", vec![x.clone(), input("y", &[7], DType::I32)], "axis 0 of y has length 7"),
        ("", vec![], "at least one input"),
    ] {
        let error = refused(text, &inputs);
        assert!(error.contains(want), "{text}: {error}");
    }
    let column = StepInput { depth: Some(vec![(0, 0), (1, 1)]), ..input("y", &[40, 1], DType::I32) };
    assert!(refused("depth = 1", &[x, column]).contains("broadcasts; write 0 there"));
}
