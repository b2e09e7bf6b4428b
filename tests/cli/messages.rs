//! What is wrong is told completely, with its place and what to do.

use crate::common::{Array, Folder, write};
use crate::{SMALL, halostream, job};
use halostream::config::CodecName;

#[test]
fn unknown_keys_in_every_table_at_once() {
    let folder = Folder::new("cli-keys");
    let text = "version = 1
wrong = 1
[inputs.a]
path = \"sample:volume\"
shapes = [8, 40, 30]
[[step]]
op = \"cast\"
dtype = \"float64\"
overfow = \"wrap\"
[[step]]
op = \"identity\"
inputs = [{ from = \"cast\", dpth = 1 }]
[outputs.b]
path = \"out.zarr\"
codec = { name = \"zstd\", levle = 3 }
chunk = [4, 4, 4]
[engine]
memry = \"2GiB\"
workers = 0
";
    job(&folder, text);
    let want = "halostream: job.toml: line 2: wrong: unknown key; known are version, input, inputs, output, outputs, step, engine
halostream: job.toml: line 5: inputs.a.shapes: unknown key; did you mean `shape`?
halostream: job.toml: line 9: step[0].overfow: unknown key; did you mean `overflow`?
halostream: job.toml: line 12: step[1].inputs[0].dpth: unknown key; did you mean `depth`?
halostream: job.toml: line 15: outputs.b.codec.levle: unknown key; did you mean `level`?
halostream: job.toml: line 16: outputs.b.chunk: unknown key; did you mean `chunks`?
halostream: job.toml: line 18: engine.memry: unknown key; did you mean `memory`?
halostream: job.toml: line 19: engine.workers: expected \"auto\" or a count from 1 to 4096, found the integer 0
";
    for command in ["run", "plan", "check"] {
        halostream(&folder, &[command, "job.toml"]).fails(2, want);
    }
    assert!(!folder.path("out.zarr").exists());
}

#[test]
fn job_files_that_are_none() {
    let folder = Folder::new("cli-files");
    halostream(&folder, &["run", "nowhere.toml"])
        .fails(2, "halostream: nowhere.toml: cannot open the job file: No such file or directory (os error 2)\n");
    job(&folder, "[input]\npath = = 3\n");
    let ended = halostream(&folder, &["run", "job.toml"]);
    assert_eq!(ended.code, 2);
    assert!(ended.err.starts_with("halostream: job.toml: line 2: column 8: not TOML: "), "{}", ended.err);
    job(&folder, "");
    halostream(&folder, &["run", "job.toml"]).fails(
        2,
        "halostream: job.toml: the job has no input; add [input] with a path
halostream: job.toml: the job has no output; add [output] with a path\n",
    );
    halostream(&folder, &["check"]).fails(2, "halostream: check: name at least one job or service file\n");
}

#[test]
fn check_goes_on_to_the_next_file() {
    let folder = Folder::new("cli-check");
    std::fs::write(folder.path("a.toml"), SMALL).expect("a file");
    std::fs::write(folder.path("b.toml"), SMALL.replace("path", "pth")).expect("a file");
    std::fs::write(folder.path("c.toml"), SMALL).expect("a file");
    let ended = halostream(&folder, &["check", "a.toml", "b.toml", "c.toml"]);
    assert_eq!((ended.code, ended.out.as_str()), (2, "a.toml: ok\nc.toml: ok\n"));
    let lines: Vec<&str> = ended.err.lines().collect();
    assert!(lines.contains(&"halostream: b.toml: line 2: input.pth: unknown key; did you mean `path`?"), "{}", ended.err);
    assert!(lines.contains(&"halostream: b.toml: line 9: output.pth: unknown key; did you mean `path`?"), "{}", ended.err);
    assert!(lines.iter().all(|l| l.starts_with("halostream: b.toml: line ")), "{}", ended.err);
    halostream(&folder, &["check", "a.toml", "c.toml"]).done();
}

#[test]
fn changes_on_the_command_line() {
    let folder = Folder::new("cli-set");
    job(&folder, SMALL);
    let fails = |set: &str, want: &str| {
        halostream(&folder, &["run", "job.toml", "--set", set]).fails(2, &format!("halostream: {want}\n"));
    };
    fails("engine", "--set engine: expected KEY=VALUE, as in --set engine.memory=2GiB");
    fails("engine.memry=2GiB", "job.toml: --set engine.memry: unknown key; did you mean `memory`?");
    fails(
        "engine.memory=lots",
        "job.toml: --set engine.memory: \"lots\" does not begin with a number; write a size such as \"2GiB\", \"512MiB\" or \"16GB\"",
    );
    fails("step.5.dtype=int8", "job.toml: --set step.5.dtype: the job has no step \"5\"; it has cast (counted from 0)");
    fails(
        "step.0.dtype=int99",
        "job.toml: --set step[0].dtype: \"int99\" is not a dtype (bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, float16, float32, float64, complex64, complex128)",
    );
    fails(
        "output.path=out.h5",
        "job.toml: --set output.path: \"out.h5\" does not say what to write; outputs end in .zarr or .npy",
    );
    assert!(!folder.path("out.zarr").exists());
    fails("output.chunks=[4, 4]", "job.toml: line 8: output `output`: chunks has 2 entries, the array has 3 axes");
    assert!(!folder.path("out.zarr").exists());
    halostream(&folder, &["run", "job.toml", "--set", "output.path=other.zarr", "--set", "step.cast.dtype=float32"]).done();
    assert!(folder.path("other.zarr/zarr.json").exists() && !folder.path("out.zarr").exists());
}

#[test]
fn inputs_that_do_not_fit() {
    let folder = Folder::new("cli-inputs");
    write(&folder.path("stack.zarr"), &Array::new::<i64>(&[4, 4, 2], &[1; 32]), &[2, 2, 2], None, CodecName::None);
    let text = "[input]\npath = \"stak.zarr\"\n[[step]]\nop = \"ks_test\"\nhalf_window = 1\n[output]\npath = \"out.zarr\"\n";
    job(&folder, text);
    halostream(&folder, &["run", "job.toml"])
        .fails(2, "halostream: job.toml: input `input`: stak.zarr: no such file or folder; did you mean stack.zarr?\n");
    let fails = |sets: &[&str], want: &str| {
        let mut args = vec!["run", "job.toml", "--set", "input.path=stack.zarr"];
        sets.iter().for_each(|set| args.extend(["--set", set]));
        halostream(&folder, &args).fails(2, &format!("halostream: job.toml: {want}\n"));
    };
    fails(&[], "line 3: step `ks_test`: ks_test takes no int64; cast to float64 first");
    fails(&["input.array=u"], "input `input`: stack.zarr: this is an array, not a group: leave out array = \"u\"");
    fails(&["input.select=0:9, 7"], "input `input`: FOLDER/stack.zarr: select has index 7 for axis 1, which has length 4");
    fails(&["input.missing=eror"], "--set input.missing: \"eror\" is none of \"fill\", \"error\"; did you mean \"error\"?");
    fails(&["input.path=*.zarr", "input.stack=4"], "input `input`: stack = 4 is not an axis of a 4-d result");
    fails(&["input.path=*.zrr"], "input `input`: \"*.zrr\" stands for nothing: no file has such a name");
    assert!(!folder.path("out.zarr").exists());
}

#[test]
fn chunks_that_cannot_be_read() {
    let folder = Folder::new("cli-chunks");
    let values: Vec<f32> = (0..1200).map(|n| n as f32).collect();
    write(&folder.path("in.zarr"), &Array::new(&[40, 30], &values), &[10, 10], None, CodecName::None);
    job(&folder, "[input]\npath = \"in.zarr\"\nmissing = \"error\"\n[output]\npath = \"out.zarr\"\n");

    let chunk = folder.path("in.zarr/c/2/1");
    let whole = std::fs::read(&chunk).expect("a chunk");
    std::fs::write(&chunk, &whole[..100]).expect("a torn chunk");
    halostream(&folder, &["run", "job.toml"]).fails(1, "halostream: job.toml: reader: input `input`, chunk [2, 1]: FOLDER/in.zarr/c/2/1: the chunk is torn: 100 bytes stored, expected 400\n");
    std::fs::write(&chunk, whole).expect("the chunk again");
    // What the failed job had stored by then belongs to another version of the input: it would be warned about.
    let sweep = || std::mem::drop(halostream(&folder, &["clean", "."]));
    sweep();

    std::fs::remove_file(folder.path("in.zarr/c/3/0")).expect("a chunk to remove");
    halostream(&folder, &["run", "job.toml"]).fails(1, "halostream: job.toml: reader: input `input`, chunk [3, 0]: FOLDER/in.zarr/c/3/0: the chunk is missing (missing = \"error\")\n");
    assert!(!folder.path("out.zarr").exists());
    sweep();

    halostream(&folder, &["run", "job.toml", "--set", "output.path=job.toml/out.zarr"])
        .fails(1, "halostream: job.toml: job.toml/out.zarr: the folder job.toml cannot be made: File exists (os error 17)\n");

    let filled = halostream(&folder, &["run", "job.toml", "--set", "input.missing=fill"]).done();
    assert!(filled.out.contains("; 1 missing chunk read as the fill value"), "{}", filled.out);
}

#[test]
fn memory_refused_with_the_number_that_works() {
    let folder = Folder::new("cli-memory");
    job(&folder, SMALL);
    let small = "engine.memory=10KiB";
    let ended = halostream(&folder, &["plan", "job.toml", "--json", "--set", small]);
    assert_eq!(ended.code, 2);
    let plan: serde_json::Value = serde_json::from_str(&ended.out).expect("one JSON object");
    let smallest = plan["smallest_memory_bytes"].as_u64().expect("a number");
    assert!(plan["predicted_peak_bytes"].as_u64().is_some_and(|n| n <= smallest), "{plan}");
    assert!(plan["frontier_bytes"].is_u64() && plan["memory_limit_bytes"] == 10240 && plan["refused"] == true, "{plan}");

    let refused = halostream(&folder, &["run", "job.toml", "--set", small]);
    assert!(refused.err.starts_with("halostream: job.toml: engine.memory = 10.0KiB is below the "), "{}", refused.err);
    assert!(refused.err.contains(&format!("({smallest} bytes)")) && refused.err == ended.err, "{}", refused.err);
    assert_eq!(refused.code, 2);
    assert!(!folder.path("out.zarr").exists());

    let set = format!("engine.memory={}", smallest - 1);
    assert_eq!(halostream(&folder, &["run", "job.toml", "--set", &set]).code, 2);
    let set = format!("engine.memory={smallest}");
    let plan = halostream(&folder, &["plan", "job.toml", "--json", "--set", &set]).done();
    let plan: serde_json::Value = serde_json::from_str(&plan.out).expect("one JSON object");
    assert_eq!(plan["smallest_memory_bytes"], smallest);
    halostream(&folder, &["run", "job.toml", "--set", &set]).done();
    assert!(folder.path("out.zarr").exists());
}

/// What the contract has and this version has not is told as that, with exit 2, and nothing is done.
#[test]
fn not_available() {
    let folder = Folder::new("cli-later");
    job(&folder, SMALL);
    let sets = ["input.path=s3://bucket/stack.npy", "input.path=https://host/stack.tif", "output.path=gs://bucket/out.npy"];
    for set in sets {
        let ended = halostream(&folder, &["run", "job.toml", "--set", set]);
        assert!(ended.code == 2 && ended.err.contains("not available in this version"), "{set}: {}", ended.err);
        let key = set.split('=').next().unwrap_or_default();
        assert!(ended.err.contains(key), "{set}: {}", ended.err);
    }
    assert!(!folder.path("out.zarr").exists());
}

#[test]
fn files_of_the_first_grammar_are_not_lifted() {
    let folder = Folder::new("cli-migrate");
    job(&folder, SMALL);
    let before = std::fs::read(folder.path("job.toml")).expect("a job");
    let told = halostream(&folder, &["check", "--migrate", "job.toml"]).done().out;
    assert_eq!(told, "job.toml: ok, nothing to lift: version 1 of the grammar is the first\n");
    assert_eq!(std::fs::read(folder.path("job.toml")).expect("a job"), before);
    job(&folder, &format!("version = 2\n{SMALL}"));
    let ended = halostream(&folder, &["check", "--migrate", "job.toml"]);
    assert!(ended.code == 2 && ended.err.contains("needs a newer one"), "{}", ended.err);
}

#[test]
fn devices_that_are_not_there() {
    let folder = Folder::new("cli-devices");
    job(&folder, SMALL);
    for args in [&["run", "job.toml"][..], &["plan", "job.toml"], &["plan", "--json", "job.toml"]] {
        let ended = halostream(&folder, &[args, &["--set", "engine.devices=['cuda:65535']"]].concat());
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.err);
        let words = ["job.toml: engine.devices: \"cuda:65535\" is not there", "devices = \"auto\""];
        assert!(words.iter().all(|w| ended.err.contains(w)) && !ended.err.contains("panicked"), "{}", ended.err);
    }
    assert!(!folder.path("out.zarr").exists());
    halostream(&folder, &["run", "job.toml", "--set", "engine.devices='auto'"]).done();
}

#[test]
fn cuda_is_opened_not_linked() {
    let binary = env!("CARGO_BIN_EXE_halostream");
    let Ok(linked) = std::process::Command::new("ldd").arg(binary).output() else {
        return eprintln!("skipped: what the binary is linked to, no ldd here");
    };
    let linked = String::from_utf8_lossy(&linked.stdout).into_owned();
    assert!(linked.contains("libc.so") && !linked.contains("libcuda") && !linked.contains("nvrtc"), "{linked}");
}

#[test]
fn usage() {
    let folder = Folder::new("cli-usage");
    assert_eq!(halostream(&folder, &["--version"]).done().out, format!("halostream {}\n", env!("CARGO_PKG_VERSION")));
    let help = halostream(&folder, &["--help"]).done().out;
    for command in ["run", "plan", "check", "ops", "inspect", "sample", "serve", "status", "requeue"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    let help = halostream(&folder, &["run", "--help"]).done().out;
    let options = ["--set", "--report", "--no-sync", "--quiet", "--trace", "--quicklook", "--partition", "--verify"];
    assert!(options.iter().all(|o| help.contains(o)), "{help}");
    for args in [&["rnu", "job.toml"][..], &["run"], &["run", "job.toml", "--quite"], &[]] {
        let ended = halostream(&folder, args);
        assert!(ended.code == 2 && ended.out.is_empty() && !ended.err.is_empty(), "{args:?}: {}", ended.err);
    }
}
