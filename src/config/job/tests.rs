//! Messages are compared as a user sees them: `line N: key: message`.

use super::super::*;
use super::*;
use crate::array::DType;
use crate::codec::Park;
use crate::operators;

fn env(name: &str) -> Option<String> {
    (name == "DATA").then(|| "/data".to_owned())
}

fn job(text: &str) -> Result<JobSpec, String> {
    job_with(text, &[])
}

fn job_with(text: &str, sets: &[(&str, &str)]) -> Result<JobSpec, String> {
    let sets: Vec<_> = sets.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    parse(text, Path::new("/jobs"), &sets, &env)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn problems(text: &str) -> String {
    job(text).err().unwrap_or_else(|| panic!("no problem in {text}"))
}

/// A job of one input with these lines, and an output.
fn with_input(lines: &str) -> String {
    format!("[output]\npath = 'o.zarr'\n[input]\n{lines}\n")
}

fn with_output(lines: &str) -> String {
    format!("[input]\npath = 'a.zarr'\n[output]\n{lines}\n")
}

fn with_engine(lines: &str) -> String {
    format!("[input]\npath = 'a.zarr'\n[output]\npath = 'o.zarr'\n[engine]\n{lines}\n")
}

/// Whether this build has the operator; says so when a test is left out.
fn has(op: &str) -> bool {
    let found = operators::find(op).is_some();
    if !found {
        println!("skipped: there is no operator {op} in this build");
    }
    found
}

const EVERYTHING: &str = r#"
version = 1
[inputs.slc]
path = ["${DATA}/a.zarr", "b.zarr"]
array = "g/u"
select = "0:10, ..., -1"
concat = -1
missing = "error"
decode_cf = false
[input]
path = "sample:volume"
shape = [64, 32, 16]
chunks = [16, 32, 16]
dtype = "<u2"
seed = 7
[inputs.stack]
path = "in/*.zarr"
stack = 0
[outputs.one]
path = "one.zarr"
from = "slc"
chunks = [16, 16]
shards = [64, 32]
codec = { name = "gzip", level = 5 }
zarr_format = 3
if_exists = "overwrite"
[output]
path = "sub/../two.zarr"
from = "input"
codec = "blosc-lz4"
[engine]
memory = "2GiB"
workers = 3
devices = ["cpu"]
block = [64, 64]
park = "bitpack"
scratch = "tmp"
scratch_limit = "100GiB"
device_memory = 1024
fallback = "cpu"
"#;

#[test]
fn raw_files_say_what_they_hold() {
    let read =
        |lines: &str| job(&with_input(&format!("path = 'a.bin'\nformat = 'raw'\n{lines}"))).map(|job| job.inputs[0].raw.clone());
    let want = RawSpec { dtype: DType::I16, is_big_endian: true, shape: vec![5, 11], offset: 352 };
    assert_eq!(read("dtype = '>i2'\nshape = [5, 11]\noffset = 352"), Ok(Some(want)));
    let bytes = RawSpec { dtype: DType::U8, is_big_endian: false, shape: vec![3], offset: 0 };
    assert_eq!(read("dtype = '>u1'\nshape = [3]"), Ok(Some(bytes)));
    assert_eq!(
        read("").unwrap_err(),
        "line 3: input.dtype: missing; a raw file does not say so itself: write dtype = \"<f4\"\n\
         line 3: input.shape: missing; a raw file does not say so itself: write shape = [50, 1104, 1104]"
    );
    assert!(read("dtype = '>q'\nshape = [3]").unwrap_err().contains("\">q\" is not a dtype; write one such as"));
    assert!(read("dtype = '<f4'\nshape = [3, 0]").unwrap_err().contains("lengths are at least 1"));
    assert!(problems(&with_input("path = 'a.zarr'\noffset = 3")).contains("only raw files (format = \"raw\") have it"));
    assert!(problems(&with_input("path = 'sample:slc'\nformat = 'raw'")).contains("a sample has no format"));
}

#[test]
fn every_key() {
    let job = job(EVERYTHING).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        job.inputs.iter().map(|i| (i.name.as_str(), i.line)).collect::<Vec<_>>(),
        [("slc", 3), ("input", 10), ("stack", 16)]
    );
    let slc = &job.inputs[0];
    assert!(matches!(&slc.from, InputPlace::Paths(p) if *p == ["/data/a.zarr", "/jobs/b.zarr"]));
    assert_eq!(slc.array.as_deref(), Some("g/u"));
    assert_eq!(
        slc.select.as_deref(),
        Some(&[Select::Slice { start: Some(0), stop: Some(10), step: 1 }, Select::Ellipsis, Select::Index(-1)][..])
    );
    assert_eq!((slc.join, slc.missing), (Some(Join::Concat(-1)), Missing::Error));
    let sample = SampleSpec {
        kind: "volume".to_owned(),
        shape: Some(vec![64, 32, 16]),
        chunks: Some(vec![16, 32, 16]),
        dtype: Some(DType::U16),
        seed: 7,
    };
    assert!(matches!(&job.inputs[1].from, InputPlace::Sample(s) if *s == sample));
    assert!(matches!(&job.inputs[2].from, InputPlace::Glob(p) if p == "/jobs/in/*.zarr"));
    assert_eq!(job.inputs[2].missing, Missing::Fill);

    let one = &job.outputs[0];
    assert_eq!((one.name.as_str(), one.path.as_path(), one.from.as_deref()), ("one", Path::new("/jobs/one.zarr"), Some("slc")));
    assert_eq!((one.chunks.as_deref(), one.shards.as_deref()), (Some(&[16, 16][..]), Some(&[64, 32][..])));
    assert_eq!(one.codec, CodecSpec { name: CodecName::Gzip, level: Some(5) });
    assert_eq!((one.zarr_format, one.if_exists), (Some(3), IfExists::Overwrite));
    assert_eq!(job.outputs[1].codec, CodecSpec { name: CodecName::BloscLz4, level: None });
    assert_eq!((job.outputs[1].zarr_format, job.outputs[1].if_exists), (None, IfExists::Resume));

    let engine = &job.engine;
    assert_eq!((engine.memory, engine.workers, engine.park), (Some(2 << 30), Some(3), Park::Bitpack));
    assert_eq!((engine.block.clone(), engine.devices.clone()), (BlockSpec::Shape(vec![64, 64]), Some(vec!["cpu".to_owned()])));
    assert_eq!((engine.scratch.as_deref(), engine.scratch_limit), (Some(Path::new("/jobs/tmp")), Some(100 << 30)));
    assert_eq!((engine.device_memory, engine.fallback), (Some(1024), true));

    // The text as written, not what the environment made of it.
    assert_eq!(job.resolved["inputs"]["slc"]["path"][0], "${DATA}/a.zarr");
    assert_eq!(job.resolved["outputs"]["output"]["path"], "sub/../two.zarr");
    assert_eq!(job.folder, Path::new("/jobs"));
}

#[test]
fn defaults() {
    let job = job("[input]\npath = 'a.zarr'\n[output]\npath = 'b.zarr'\n").unwrap_or_else(|e| panic!("{e}"));
    assert!(job.steps.is_empty());
    let engine = &job.engine;
    assert_eq!((engine.memory, engine.workers, engine.block.clone(), engine.park), (None, None, BlockSpec::Auto, Park::Auto));
    assert_eq!((engine.devices.clone(), engine.scratch.clone(), engine.fallback), (None, None, false));
    assert_eq!(job.outputs[0].codec, CodecSpec { name: CodecName::Zstd, level: None });
    assert!(job.outputs[0].from.is_none() && job.outputs[0].chunks.is_none());
    assert_eq!(job.resolved.to_string(), r#"{"input":{"path":"a.zarr"},"output":{"path":"b.zarr"}}"#);
}

#[test]
fn all_problems_at_once_with_their_lines() {
    let text = "[input]\npath = 5\nselekt = ':'\n\n[[step]]\nop = 'no_such_op'\n[output]\npath = 'o.zarr'\nchunks = [0]\n[engine]\n\
                wrokers = 2\nmemory = 'much'\n";
    let want = "line 2: input.path: expected a path or a list of paths, found the integer 5
line 3: input.selekt: unknown key; did you mean `select`?
line 6: step[0].op: there is no operator \"no_such_op\"";
    let got = problems(text);
    assert!(got.starts_with(want), "{got}");
    let want = "
line 9: output.chunks: entry 0 is 0; lengths are at least 1
line 11: engine.wrokers: unknown key; did you mean `workers`?
line 12: engine.memory: \"much\" does not begin with a number; write a size such as \"2GiB\", \"512MiB\" or \"16GB\"";
    assert!(got.ends_with(want), "{got}");
}

#[test]
fn unknown_keys_of_each_table() {
    let text = "verson = 1\n[input]\npath = 'a.zarr'\nmising = 'fill'\n[output]\npath = 'o.zarr'\ncodec = { name = 'zstd', levle = 3 }\nformat = 3\n[engine]\nblok = 'auto'\n[stepp]\n";
    let want = "line 1: verson: unknown key; did you mean `version`?
line 4: input.mising: unknown key; did you mean `missing`?
line 7: output.codec.levle: unknown key; did you mean `level`?
line 8: output.format: unknown key; did you mean `from`?
line 10: engine.blok: unknown key; did you mean `block`?
line 11: stepp: unknown key; did you mean `step`?";
    let got = problems(text);
    let got: Vec<&str> = got.lines().filter(|l| !l.starts_with("line 8")).collect();
    let want: Vec<&str> = want.lines().filter(|l| !l.starts_with("line 8")).collect();
    assert_eq!(got, want);
    assert!(problems("completely = 1\n[input]\npath = 'a.zarr'\n[output]\npath = 'o.zarr'").contains("known are version, input"));
}

#[test]
fn inputs_refused() {
    for (lines, want) in [
        ("", "line 3: input.path: missing; write path = \"stack.zarr\""),
        ("path = ''", "line 4: input.path: the path is empty"),
        ("path = []", "line 4: input.path: the list is empty"),
        ("path = ['a.zarr',\n 3]", "line 5: input.path[1]: expected a path, found the integer 3"),
        ("path = ['a.zarr', 'b.zarr']", "input.path: 2 paths need stack = 0 or concat = 0"),
        ("path = ['sample:slc', 'a.zarr']\nstack = 0", "input.path: entry [0]: \"sample:slc\" cannot be one of several paths"),
        (
            "path = 'sample:slk'",
            "input.path: there is no sample \"slk\" (slc, volume, genotypes, seismic, tiff); did you mean \"sample:slc\"?",
        ),
        ("path = 'sample:slc'\nshape = [4, 4]\nchunks = [4]", "line 6: input.chunks: has 1 entries, shape has 2"),
        ("path = 'sample:slc'\nshape = [9223372036854775807, 2]", "input.shape: has more elements than 64 bits count"),
        ("path = 'sample:slc'\nshape = 4", "input.shape: expected one length per axis, such as [64, 256, 256], found 4"),
        ("path = 'sample:slc'\nshape = [4, -1]", "input.shape: expected an integer from 0 up or a list of them, found a list"),
        ("path = 'sample:slc'\ndtype = 'flaot32'", "did you mean \"float32\"?"),
        ("path = 'sample:slc'\nstack = 0", "line 5: input.stack: a sample is one array"),
        ("path = 'sample:slc'\narray = 'u'", "line 5: input.array: a sample is one array"),
        ("path = 'a.zarr'\nseed = 1", "line 5: input.seed: only samples (path = \"sample:slc\") have it"),
        ("path = 'a.zarr'\nshape = [1]", "line 5: input.shape: only samples (path = \"sample:slc\") and raw files"),
        ("path = 'a.zarr'\noffset = 1", "line 5: input.offset: only raw files"),
        ("path = 'a.zarr'\narray = '../b'", "input.array: \"../b\" is no array inside a group"),
        ("path = 'a.zarr'\narray = '/b'", "input.array: \"/b\" is no array inside a group"),
        ("path = 'a.zarr'\nselect = '0:x'", "line 5: input.select: \"x\" in \"0:x\" is not an integer; write one entry per axis"),
        ("path = 'a.zarr'\nselect = [0]", "line 5: input.select: expected a string, found a list"),
        ("path = 'a.zarr'\nstack = 0\nconcat = 1", "line 6: input.concat: `stack` and `concat` exclude each other"),
        ("path = 'a.zarr'\nmissing = 'eror'", "input.missing: \"eror\" is none of \"fill\", \"error\"; did you mean \"error\"?"),
        ("path = 'ftp://x/a.zarr'", "unknown scheme ftp://"),
        ("path = 's3://me:word@b/a.zarr'", "input.path: the s3:// URL has a user or password in it"),
        ("path = 'https://h/a.zarr?token=word'", "input.path: the https:// URL has a `?` or `#` in it"),
        ("path = 'gs://b/*.zarr'", "patterns stand for files; list the URLs"),
        ("command = ['python3']\nshape = [4]\ndtype = '<f4'", "input.chunks: missing; a command does not say so itself"),
        ("command = []\nshape = [4]\ndtype = '<f4'\nchunks = [2]", "line 4: input.command: names no program"),
        ("command = ['a']\nshape = [4]\ndtype = '<f4'\nchunks = [2, 2]", "line 7: input.chunks: has 2 entries, shape has 1"),
        (
            "command = ['a']\npath = 'b'\nshape = [4]\ndtype = '<f4'\nchunks = [2]",
            "line 5: input.path: an input from a command has none",
        ),
        ("path = 'a.zarr'\nkeep = 'k.txt'", "line 5: input.keep: expected a list such as [{ axis = 1, file = \"keep.txt\" }]"),
        ("path = 'a.zarr'\nkeep = []", "line 5: input.keep: the list is empty"),
        ("path = 'a.zarr'\nkeep = [{ axis = 1 }]", "line 5: input.keep[0].file: missing; write file = \"keep.txt\""),
        ("path = 'a.zarr'\nkeep = [{ file = 'k', axis = 1, bye = 'name' }]", "keep[0].bye: unknown key; did you mean `by`?"),
        (
            "path = 'a.zarr'\nkeep = [{ axis = 0, file = 'k' }, { axis = 0, file = 'l' }]",
            "input.keep[1].axis: is in the list twice",
        ),
        ("path = '${NOWHERE}/a.zarr'", "line 4: input.path: the environment has no variable NOWHERE"),
    ] {
        let got = problems(&with_input(lines));
        assert!(got.contains(want) && got.lines().count() == 1, "{lines}:\n{got}\nwanted {want}");
    }
}

#[test]
fn not_available_yet() {
    let mut cases: Vec<String> = Vec::new();
    cases.push(with_input("path = 's3://b/a.npy'"));
    cases.push(with_input("path = 'https://h/a/b.TIF'"));
    cases.push(with_input("path = 's3://b/a'\nformat = 'raw'\ndtype = '<f4'\nshape = [4]"));
    cases.push(with_output("path = 's3://b/o.npy'"));
    cases.push(with_output("path = 's3://b/o.zarr'\npoints = 'index'"));
    for text in cases {
        let got = problems(&text);
        assert!(got.contains("not available in this version") && got.lines().count() == 1, "{text}:\n{got}");
    }
}

#[test]
fn urls_are_no_paths_of_the_job_s_folder() {
    let job = job(&with_input("path = ['s3://b/a.zarr', 'https://h/c d.zarr', 'e.zarr']\nstack = 0")).unwrap();
    let paths = job.inputs[0].paths().unwrap();
    assert_eq!(paths, ["s3://b/a.zarr", "https://h/c d.zarr", "/jobs/e.zarr"]);
}

#[test]
fn outputs_refused() {
    for (lines, want) in [
        ("", "line 3: output.path: missing; write path = \"result.zarr\""),
        ("path = 7", "line 4: output.path: expected a string, found the integer 7"),
        ("path = 'o.tar'", "line 4: output.path: \"o.tar\" does not say what to write; outputs end in .zarr"),
        ("path = '.zarr'", "outputs end in .zarr"),
        ("path = 'o.zarr'\ncodec = 'zst'", "line 5: output.codec: \"zst\" is none of \"none\", \"zstd\""),
        ("path = 'o.zarr'\ncodec = 3", "line 5: output.codec: expected a codec's name or { name, level }, found the integer 3"),
        ("path = 'o.zarr'\ncodec = { level = 3 }", "output.codec.name: missing; one of none, zstd"),
        ("path = 'o.zarr'\ncodec = { name = 'gzip', level = 10 }", "output.codec.level: gzip has levels 0 to 9, not 10"),
        ("path = 'o.zarr'\ncodec = { name = 'none', level = 1 }", "output.codec.level: codec \"none\" has no level"),
        ("path = 'o.zarr'\nzarr_format = 4", "output.zarr_format: Zarr has formats 2 and 3, not 4"),
        ("path = 'o.zarr'\nzarr_format = 2\nshards = [4]", "output.shards: Zarr format 2 has no shards"),
        ("path = 'o.zarr'\nchunks = [4]\nshards = [6]", "output.shards: entry 0 is 6, no multiple of the chunk's 4"),
        ("path = 'o.zarr'\nchunks = [4]\nshards = [4, 4]", "output.shards: has 2 entries, chunks has 1"),
        ("path = 'o.zarr'\nchunks = [-4]", "output.chunks: expected an integer from 0 up"),
        ("path = 'o.zarr'\nchunks = []", "output.chunks: the list is empty"),
        ("path = 'o.zarr'\nif_exists = 'append'", "output.if_exists: \"append\" is none of \"resume\", \"overwrite\", \"error\""),
        (
            "path = 'o.zarr'\nfrom = 'inptu'",
            "output.from: \"inptu\" is neither an input nor a step (input); did you mean \"input\"?",
        ),
        ("path = 'o.zarr'\nfrom = 'input.p'", "output.from: \"input.p\": input \"input\" is one array"),
        ("path = './x/../a.zarr'", "output.path: /jobs/./x/../a.zarr would be written where [input] is read (/jobs/a.zarr)"),
        ("path = 'a.zarr/o.zarr'", "would be written where [input] is read"),
    ] {
        let got = problems(&with_output(lines));
        assert!(got.contains(want) && got.lines().count() == 1, "{lines}:\n{got}\nwanted {want}");
    }
    let two = "[inputs.a]\npath = 'a.zarr'\n[outputs.x]\npath = 'o.zarr'\n[outputs.y]\npath = './o.zarr'\n";
    assert_eq!(
        problems(two),
        "line 5: outputs.y.path: /jobs/./o.zarr is the place of [outputs.x] too; give each output its own path"
    );
}

#[test]
fn engine_refused() {
    for (lines, want) in [
        ("memory = '2 gibibytes'", "line 6: engine.memory: \"2 gibibytes\" has an unknown unit \"gibibytes\""),
        ("memory = -1", "engine.memory: expected a size such as \"2GiB\", found the integer -1"),
        ("memory = 1.5", "engine.memory: expected a size such as \"2GiB\", found the number 1.5"),
        ("workers = 0", "engine.workers: expected \"auto\" or a count from 1 to 4096, found the integer 0"),
        ("workers = 'all'", "engine.workers: expected \"auto\" or a count from 1 to 4096, found the string \"all\""),
        ("devices = 'cpu'", "engine.devices: expected \"auto\" or a list; write [\"cpu\"]"),
        ("devices = ['gpu']", "engine.devices: \"gpu\" is no device"),
        ("devices = []", "engine.devices: the list is empty"),
        ("block = 'sauce'", "engine.block: \"sauce\" is none of \"auto\", \"source\"; did you mean \"source\"?"),
        ("block = [0]", "engine.block: entry 0 is 0"),
        ("block = 64", "engine.block: expected \"auto\", \"source\" or a shape"),
        ("park = 'zip'", "engine.park: \"zip\" is none of \"auto\", \"none\", \"lz4\", \"blosc\", \"bitpack\""),
        ("fallback = true", "engine.fallback: expected a string, found true"),
    ] {
        let got = problems(&with_engine(lines));
        assert!(got.contains(want) && got.lines().count() == 1, "{lines}:\n{got}\nwanted {want}");
    }
}

#[test]
fn whole_tables() {
    assert_eq!(problems(""), "the job has no input; add [input] with a path\nthe job has no output; add [output] with a path");
    assert_eq!(problems("[inputs]\n[output]\npath = 'o.zarr'"), "the job has no input; add [input] with a path");
    assert_eq!(
        problems("input = 'a.zarr'\n[output]\npath = 'o.zarr'"),
        "line 1: input: expected a table, found the string \"a.zarr\"; write [input] with path = ..."
    );
    assert_eq!(
        problems("inputs = 3\n[output]\npath = 'o.zarr'"),
        "line 1: inputs: expected tables [inputs.NAME], found the integer 3"
    );
    let double = "[input]\npath = 'a.zarr'\n[inputs.input]\npath = 'b.zarr'\n[output]\npath = 'o.zarr'";
    assert_eq!(problems(double), "line 3: inputs.input: [input] is short for [inputs.input]; there can be only one of them");
    let name = "[inputs.'a.b']\npath = 'a.zarr'\n[output]\npath = 'o.zarr'";
    assert_eq!(problems(name), "line 1: inputs.a.b: \"a.b\" is no name; use letters, digits, _ and -, a letter first");
    let base = "[input]\npath = 'a.zarr'\n[output]\npath = 'o.zarr'\n";
    assert_eq!(problems(&format!("{base}[step]\nop = 'x'")), "line 5: step: steps are a list; write [[step]] with two brackets");
    assert_eq!(
        problems(&format!("version = 2\n{base}")),
        "line 1: version: this halostream reads version 1 of the grammar; 2 needs a newer one"
    );
    assert_eq!(problems(&format!("version = '1'\n{base}")), "line 1: version: expected 1, found the string \"1\"");
    assert_eq!(problems(&format!("step = [1]\n{base}")), "line 1: step[0]: expected a table, found the integer 1");
    assert!(job(&format!("step = []\n{base}")).is_ok());
}

#[test]
fn not_toml() {
    let got = problems("[input]\npath = 'a.zarr\n[output]\npath = = 3\n");
    assert!(got.starts_with("line 2: column "), "{got}");
    assert!(got.contains("in `path = 'a.zarr`") && got.contains("\nline 4: column "), "{got}");
    let double = problems("[input]\npath = 'a'\npath = 'b'\n");
    assert!(double.starts_with("line 3: column 1: not TOML: duplicate key"), "{double}");
    let deep = format!("a = {}1", "[".repeat(100_000));
    assert!(problems(&deep).contains("not TOML"));
}

#[test]
fn values_from_the_command_line() {
    let text = with_engine("workers = 2");
    let job = job_with(
        &text,
        &[
            ("engine.workers", "4"),
            ("output.if_exists", "overwrite"),
            ("input.path", "c.zarr"),
            ("engine.block", "[8, 8]"),
            ("output.path", "${DATA}/o.zarr"),
        ],
    );
    let job = job.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((job.engine.workers, job.outputs[0].if_exists), (Some(4), IfExists::Overwrite));
    assert_eq!(job.engine.block, BlockSpec::Shape(vec![8, 8]));
    assert_eq!(job.outputs[0].path, Path::new("/data/o.zarr"));
    assert_eq!((&job.resolved["input"]["path"], &job.resolved["engine"]["workers"]), (&"c.zarr".into(), &4.into()));

    let error = |key: &str, value: &str| job_with(&text, &[(key, value)]).err().unwrap_or_default();
    assert_eq!(error("output.if_exist", "error"), "--set output.if_exist: unknown key; did you mean `if_exists`?");
    assert_eq!(error("output.chunks", "[1, 0]"), "--set output.chunks: entry 1 is 0; lengths are at least 1");
    assert_eq!(
        error("engine.memory", "lots"),
        "--set engine.memory: \"lots\" does not begin with a number; write a size such as \"2GiB\", \"512MiB\" or \"16GB\""
    );
    assert_eq!(error("outputs.k.path", "k.zarr"), "--set outputs.k.path: the job has no output \"k\"; it has output");
    assert_eq!(error("step.0.sigma", "3"), "--set step.0.sigma: the job has no steps");
    assert_eq!(error("input.path", "['a.zarr', 3]"), "--set input.path[1]: expected a path, found the integer 3");
    assert_eq!(error("engine.workers.x", "3"), "--set engine.workers.x: `engine.workers` is not a table");
    assert_eq!(error("input.path", "${X}"), "--set input.path: the environment has no variable X (of \"${X}\")");
}

/// Names and references are checked whether or not the operators exist; those messages are left out here.
fn without_ops(text: &str) -> String {
    problems(text).lines().filter(|l| !l.contains(".op: there is no operator")).collect::<Vec<_>>().join("\n")
}

#[test]
fn names_and_references() {
    let steps = |steps: &str| format!("[inputs.slc]\npath = 'a.zarr'\n[output]\npath = 'o.zarr'\n{steps}");
    for (text, want) in [
        (
            "[[step]]\nop = 'zzz'\n[[step]]\nop = 'zzz'",
            "line 7: step[1].name: step[0] is called \"zzz\" too; two steps of one op need a `name` each",
        ),
        (
            "[[step]]\nop = 'zzz'\n[[step]]\nop = 'yyy'\nname = 'zzz'",
            "line 7: step[1].name: step[0] is called \"zzz\" too; names are unique",
        ),
        (
            "[[step]]\nop = 'zzz'\nname = 'slc'",
            "line 5: step[0].name: an input is called \"slc\" too; give the step a `name` of its own",
        ),
        (
            "[[step]]\nop = 'zzz'\nname = 'a.b'",
            "line 5: step[0].name: \"a.b\" is no name; use letters, digits, _ and -, a letter first",
        ),
        (
            "[[step]]\nop = 'zzz'\ninputs = 'scl'",
            "line 7: step[0].inputs: \"scl\" is neither an input nor a step (slc); did you mean \"slc\"?",
        ),
        (
            "[[step]]\nop = 'zzz'\ninputs = ['slc',\n{ from = 'yyy.p' }]\n[[step]]\nop = 'yyy'",
            "line 8: step[0].inputs[1]: \"yyy.p\" refers to a later step, step[1]; steps use only what stands above them",
        ),
        ("[[step]]\nop = 'zzz'\ninputs = ['zzz']", "line 7: step[0].inputs[0]: \"zzz\" refers to this step itself"),
        (
            "[[step]]\nop = 'zzz'\ninputs = ['slc.p']",
            "line 7: step[0].inputs[0]: \"slc.p\": input \"slc\" is one array, it has no outputs to choose from",
        ),
        ("[[step]]\nop = 'zzz'\n[[step]]\nop = 'yyy'\ninputs = 'zzz.'", "line 9: step[1].inputs: \"zzz.\" ends in a dot"),
        (
            "[[step]]\nop = 'zzz'\ninputs = []",
            "line 7: step[0].inputs: the list is empty; leave it out to take the previous step",
        ),
        (
            "[[step]]\nop = 'zzz'\ninputs = [3]",
            "line 7: step[0].inputs[0]: expected a name or { from, depth, boundary }, found the integer 3",
        ),
        (
            "[[step]]\nop = 'zzz'\ninputs = [{ depth = 1 }]",
            "line 7: step[0].inputs[0].from: missing; write the name of an input or of an earlier step",
        ),
        (
            "[[step]]\nop = 'zzz'\ninputs = [{ from = 'slc', depth = -1 }]",
            "line 7: step[0].inputs[0].depth: a depth cannot be negative, found -1",
        ),
        (
            "[[step]]\nop = 'zzz'\ninputs = [{ from = 'slc', dept = 1 }]",
            "line 7: step[0].inputs[0].dept: unknown key; did you mean `depth`?",
        ),
        (
            "[[step]]\nname = 'x'",
            "line 5: step[0].op: missing; write op = \"gaussian_filter\" or another that `halostream ops` lists",
        ),
    ] {
        assert_eq!(without_ops(&steps(text)), want, "{text}");
    }
    // Right ones: nothing is left but the operators.
    let good = "[[step]]\nop = 'zzz'\n[[step]]\nop = 'yyy'\ninputs = ['slc', 'zzz', { from = 'zzz.p', depth = [[1, 2]], boundary = ['none'] }]\n";
    assert_eq!(without_ops(&steps(good)), "");
}

#[test]
fn operators_and_their_keys() {
    if !has("ks_test") {
        return;
    }
    let step = |lines: &str| format!("[input]\npath = 'a.zarr'\n[output]\npath = 'o.zarr'\n[[step]]\nop = 'ks_test'\n{lines}\n");
    let job = job(&step("half_window = [5, 5]\nboundary = ['none', 'none', ['reflect', nan]]")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((job.steps[0].name.as_str(), job.steps[0].op, job.steps[0].line), ("ks_test", "ks_test", 5));
    assert!(matches!(&job.steps[0].boundary, Some(BoundarySpec::PerAxis(list)) if list.len() == 3));
    for (lines, want) in [
        ("half_windw = [1, 1]", "line 7: step[0].half_windw: unknown key; did you mean `half_window`?"),
        (
            "half_window = [1, 1]\nmode = 'reflect'",
            "line 8: step[0].mode: unknown key; scipy's mode and cval are one key here: `boundary`",
        ),
        (
            "half_window = [1, 1]\ncval = 1",
            "line 8: step[0].cval: unknown key; scipy's mode and cval are one key here: `boundary`",
        ),
        ("half_window = [1, 1]\nboundary = 'wrap'", "line 8: step[0].boundary: \"wrap\" is no boundary rule"),
    ] {
        let got = problems(&step(lines));
        assert!(got.contains(want), "{lines}:\n{got}");
    }
    assert!(problems(&step("").replace("ks_test", "ks_tset")).contains("did you mean \"ks_test\"?"));
}

#[test]
fn a_resolved_job_is_a_job() {
    let first = job(EVERYTHING).unwrap_or_else(|e| panic!("{e}"));
    let file = to_toml(&first.resolved).unwrap_or_else(|e| panic!("{e}"));
    let second = job(&file).unwrap_or_else(|e| panic!("{e}\n{file}"));
    assert_eq!(first.resolved.to_string(), second.resolved.to_string(), "{file}");
}

/// The shipped files are read; what they need beyond this build is said.
#[test]
fn shipped_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("[[watch]]") {
            continue;
        }
        let ops = text.lines().filter_map(|l| l.strip_prefix("op = \"")?.split('"').next());
        if !ops.clone().all(has) {
            continue;
        }
        let problems = read(&path, &[]).err().unwrap_or_default();
        assert!(problems.is_empty(), "{}: {problems:?}", path.display());
        // A wrong key in any of them is found and named.
        let wrong = parse(&text, &folder, &[("engine.wrongkey".to_owned(), "1".to_owned())], &env).err().unwrap_or_default();
        assert!(wrong.iter().any(|p| p.key == "--set engine.wrongkey"), "{}", path.display());
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn files_that_are_no_jobs() {
    let folder = std::env::temp_dir().join(format!("halostream-job-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).unwrap();
        read(&folder.join(name), &[]).err().unwrap_or_default().iter().map(ToString::to_string).collect::<String>()
    };
    let binary = file("binary.toml", b"a = 1\n\xff\n");
    let huge = file("huge.toml", &vec![b'#'; MAX_JOB_BYTES as usize + 1]);
    let good = file("good.toml", b"[input]\npath = 'a.zarr'\n[output]\npath = 'o.zarr'\n");
    let spec = read(&folder.join("good.toml"), &[]).map(|job| job.outputs[0].path.clone());
    let absent = read(&folder.join("absent.toml"), &[]).err().unwrap_or_default();
    let directory = read(&folder, &[]).err().unwrap_or_default();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(binary.ends_with("is no job file: line 2 is not UTF-8"), "{binary}");
    assert!(huge.ends_with("is no job file: it is larger than 4.00MiB"), "{huge}");
    assert_eq!((good.as_str(), spec), ("", Ok(folder.join("o.zarr"))));
    assert!(absent[0].message.contains("absent.toml: cannot open the job file"), "{absent:?}");
    assert!(directory[0].message.contains("cannot read the job file"), "{directory:?}");
}

/// Mutations of a job: whatever comes out, it is a job or a list of problems.
#[test]
fn mutations_never_panic() {
    let seed_text = format!(
        "{EVERYTHING}\n[[step]]\nop = 'ks_test'\nhalf_window = [5, 5]\ninputs = [{{ from = 'slc', depth = [[1, 2]], boundary = ['none', nan] }}]\n"
    );
    let words = [
        "[",
        "]",
        "[[step]]",
        "[input]",
        "=",
        "'",
        "\"",
        "\n",
        "{",
        "}",
        "-1",
        "9223372036854775807",
        "99999999999999999999",
        "nan",
        "inf",
        "1e999",
        "''",
        "...",
        "::",
        "${",
        "}",
        "$${",
        ",",
        ".",
        "é",
        "\u{0}",
        "sample:",
        "*",
        "[[",
        "true",
        "0x10",
        "1979-05-27",
        "#",
    ];
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let (mut jobs, mut refused) = (0, 0);
    for _ in 0..6000 {
        let mut text: Vec<char> = seed_text.chars().collect();
        for _ in 0..1 + random(4) {
            let at = random(text.len());
            match random(4) {
                0 => drop(text.remove(at)),
                1 => text.splice(at..at, words[random(words.len())].chars()).for_each(drop),
                2 => {
                    let next = (at + 1).min(text.len() - 1);
                    text.swap(at, next);
                }
                _ => {
                    let end = (at + random(30)).min(text.len());
                    text.splice(at..end, words[random(words.len())].chars()).for_each(drop);
                }
            }
        }
        let text: String = text.into_iter().collect();
        let key = ["step.0.inputs.0.depth", "engine.memory", "inputs.slc.path", "output", "step.ks_test", "version"][random(6)];
        let sets = [(key.to_owned(), words[random(words.len())].to_owned())];
        match parse(&text, Path::new("/jobs"), &sets[..random(2)], &env) {
            Ok(job) => {
                jobs += 1;
                assert!(to_toml(&job.resolved).is_ok(), "{text}");
            }
            Err(list) => {
                refused += 1;
                assert!(!list.is_empty() && list.iter().all(|p| !p.message.is_empty()), "{text}");
            }
        }
    }
    // Without ks_test every mutation is refused.
    assert!(refused > 0 && (jobs > 0 || operators::find("ks_test").is_none()), "{jobs} jobs, {refused} refused");
}

#[test]
fn a_file_that_is_no_job_is_refused_soon() {
    use std::fmt::Write;
    let started = std::time::Instant::now();
    let (mut table, mut keys) = (String::new(), String::new());
    for i in 0..100_000 {
        let _ = writeln!(table, "{i},foo,bar");
        let _ = writeln!(keys, "k{i} = 1");
    }
    for (text, first) in [(table, "line 1: column"), (keys, "line 1: k0: unknown key")] {
        let list: Vec<String> = parse(&text, Path::new("."), &[], &env).err().unwrap().iter().map(ToString::to_string).collect();
        assert!(list.len() <= super::super::table::MOST_PROBLEMS + 1, "{}", list.len());
        assert!(list.iter().any(|p| p.starts_with(first)), "{list:?}");
        assert!(list.last().unwrap().ends_with("more problems are not listed"), "{list:?}");
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
}
