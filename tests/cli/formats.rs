//! Inputs that are not Zarr: the same values give the same result from any of them.

use halostream::array::DType;

use crate::common::{Folder, read};
use crate::halostream;

const SHAPE: [usize; 3] = [7, 40, 30];

/// Some values, C order.
fn values() -> Vec<i16> {
    (0..SHAPE.iter().product::<usize>()).map(|i| (i * 7919 % 20011) as i16 - 10000).collect()
}

/// With the first axis running fastest.
fn turned(values: &[i16]) -> Vec<i16> {
    let [a, b, c] = SHAPE;
    (0..values.len()).map(|i| values[(i % a * b + i / a % b) * c + i / (a * b)]).collect()
}

fn npy(descr: &str, is_fortran: bool, data: Vec<u8>) -> Vec<u8> {
    let order = if is_fortran { "True" } else { "False" };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {SHAPE:?}, }}\n").replace(['[', ']'], "|");
    let (head, tail) = text.split_once('|').expect("a shape");
    let text = format!("{head}({}", tail.replacen('|', ")", 1));
    [b"\x93NUMPY\x01\0", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), &data].concat()
}

#[test]
fn files_of_numbers() {
    let folder = Folder::new("cli-formats");
    let values = values();
    let little = |list: &[i16]| list.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let big = |list: &[i16]| list.iter().flat_map(|v| v.to_be_bytes()).collect::<Vec<u8>>();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path(name), bytes).expect("a file");
    write("c.npy", &npy("<i2", false, little(&values)));
    write("f.npy", &npy(">i2", true, big(&turned(&values))));
    write("values.dat", &[vec![0; 100], big(&values)].concat());
    let raw = "path = 'values.dat'\nformat = 'raw'\ndtype = '>i2'\nshape = [7, 40, 30]\noffset = 100";
    for (name, input) in [("c", "path = 'c.npy'"), ("f", "path = 'f.npy'"), ("raw", raw)] {
        let whole = format!("[input]\n{input}\n[output]\npath = '{name}.zarr'\nchunks = [3, 16, 30]\n");
        let part = format!(
            "[input]\n{input}\nselect = '1:6, ::3, 5:25'\n[[step]]\nop = 'median_filter'\nsize = 3\n[output]\npath = '{name}-part.zarr'\n"
        );
        write("whole.toml", whole.as_bytes());
        write("part.toml", part.as_bytes());
        halostream(&folder, &["run", "whole.toml", "--no-sync"]).done();
        halostream(&folder, &["run", "part.toml", "--no-sync"]).done();
        let got = read(&folder.path(&format!("{name}.zarr")), None);
        assert_eq!((got.dtype, &got.shape[..]), (DType::I16, &SHAPE.map(|n| n as u64)[..]));
        assert!(got.bytes == values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>(), "{name}");
        let part = read(&folder.path(&format!("{name}-part.zarr")), None);
        assert!(part == read(&folder.path("c-part.zarr"), None), "{name}");
        let again = halostream(&folder, &["run", "whole.toml"]).done().out;
        assert!(again.contains("nothing to do"), "{again}");
    }
    // Stacked, and one that was cut off.
    write(
        "stack.toml",
        b"[input]\npath = ['c.npy', 'f.npy']\nstack = 0\n[[step]]\nop = 'max'\naxis = 0\n[output]\npath = 'max.zarr'\n",
    );
    halostream(&folder, &["run", "stack.toml", "--no-sync"]).done();
    assert!(read(&folder.path("max.zarr"), None).bytes == read(&folder.path("c.zarr"), None).bytes);
    let whole = std::fs::read(folder.path("c.npy")).expect("the file");
    write("c.npy", &whole[..whole.len() - 1]);
    let ended = halostream(&folder, &["run", "stack.toml", "--set", "output.if_exists=overwrite"]);
    assert!(
        ended.code == 2 && ended.err.contains("c.npy: is cut off: the shape [7, 40, 30] of int16 takes 16800"),
        "{}",
        ended.err
    );
    let ended = halostream(&folder, &["run", "whole.toml", "--set", "input.array=a"]);
    assert!(ended.code == 2 && ended.err.contains("is one array"), "{}", ended.err);
}

/// Variants by samples, two bits a call on disk and 0 to 3 in the graph: an operator that was not told what 3 means stops.
#[test]
fn genotypes_of_plink() {
    let folder = Folder::new("cli-bed");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path(name), bytes).expect("a file");
    // Two variants of five samples: 2 3 1 0 2 and 0 0 1 1 3.
    write("a.bed", &[0x6c, 0x1b, 0x01, 0b11_10_01_00, 0b00, 0b10_10_11_11, 0b01]);
    write("a.bim", b"1\trs1\t0\t1\tA\tG\n1\trs2\t0\t2\tC\tT\n");
    write("a.fam", b"f 1 0 0 0 -9\nf 2 0 0 0 -9\nf 3 0 0 0 -9\nf 4 0 0 0 -9\nf 5 0 0 0 -9\n");
    write("copy.toml", b"[input]\npath = 'a.bed'\n[output]\npath = 'copy.zarr'\n");
    write("sum.toml", b"[input]\npath = 'a.bed'\n[[step]]\nop = 'sum'\naxis = 1\n[output]\npath = 'sum.zarr'\n");
    halostream(&folder, &["run", "copy.toml", "--no-sync"]).done();
    let got = read(&folder.path("copy.zarr"), None);
    assert_eq!((got.dtype, &got.shape[..], &got.bytes[..]), (DType::U8, &[2, 5][..], &[2, 3, 1, 0, 2, 0, 0, 1, 1, 3][..]));
    let ended = halostream(&folder, &["run", "sum.toml", "--no-sync"]);
    assert!(ended.code != 0 && ended.err.contains("missing value 3"), "{}", ended.err);
    write("sum.toml", b"[input]\npath = 'a.bed'\n[[step]]\nop = 'sum'\naxis = 1\nignore = 3\n[output]\npath = 'sum.zarr'\n");
    halostream(&folder, &["run", "sum.toml", "--no-sync"]).done();
    let sums = read(&folder.path("sum.zarr"), None);
    assert_eq!(bytemuck::cast_slice::<u8, u64>(&sums.bytes), [5, 2]);
}

/// Samples and variants by the names that plink gives them.
#[test]
fn genotypes_kept_by_name() {
    let folder = Folder::new("cli-keep-bed");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path(name), bytes).expect("a file");
    // Two variants of five samples: 2 3 1 0 2 and 0 0 1 1 3.
    write("a.bed", &[0x6c, 0x1b, 0x01, 0b11_10_01_00, 0b00, 0b10_10_11_11, 0b01]);
    write("a.bim", b"1\trs1\t0\t1\tA\tG\n1\trs2\t0\t2\tC\tT\n");
    write("a.fam", b"f ann 0 0 0 -9\nf bob 0 0 0 -9\ng ann 0 0 0 -9\ng 4 0 0 0 -9\nh eve 0 0 0 -9\n");
    let job = "[input]\npath = 'a.bed'\nkeep = [{ axis = 1, file = 'samples.txt' }]\n[output]\npath = 'out.zarr'\nif_exists = 'overwrite'\n";
    write("job.toml", job.as_bytes());
    let kept = |lines: &str, more: &[&str]| {
        write("samples.txt", lines.as_bytes());
        let mut args = vec!["run", "job.toml", "--no-sync"];
        args.extend(more.iter().flat_map(|set| ["--set", *set]));
        halostream(&folder, &args).done();
        let got = read(&folder.path("out.zarr"), None);
        (got.shape, got.bytes)
    };
    assert_eq!(kept("eve\nbob\n", &[]), (vec![2, 2], vec![3, 2, 0, 3]));
    assert_eq!(kept("g ann\nf ann\n", &[]), (vec![2, 2], vec![2, 1, 0, 1]));
    // A sample called 4 is the entry 3; the entry 4 is eve.
    assert_eq!(kept("4\n", &["input.keep=[{ axis = 1, file = 'samples.txt', by = 'name' }]"]), (vec![2, 1], vec![0, 1]));
    assert_eq!(kept("4\n", &["input.keep=[{ axis = 1, file = 'samples.txt', by = 'index' }]"]), (vec![2, 1], vec![2, 3]));
    write("variants.txt", b"rs2\n");
    let both = "input.keep=[{ axis = 0, file = 'variants.txt' }, { axis = -1, file = 'samples.txt' }]";
    assert_eq!(kept("bob\neve\n", &[both]), (vec![1, 2], vec![0, 3]));
    for (lines, words) in [
        ("4\n", "samples.txt: holds numbers that are indices as well as names"),
        ("ann\n", "samples.txt: line 1: \"ann\" is the name of several entries in"),
        ("bob\nzoe\n", "samples.txt: line 2: \"zoe\" is not in"),
        ("f bob\nbob\n", "samples.txt: line 2: \"bob\" is the entry of line 1 again"),
        ("", "samples.txt: names no entries"),
    ] {
        write("samples.txt", lines.as_bytes());
        let ended = halostream(&folder, &["plan", "job.toml"]);
        assert!(ended.code == 2 && ended.err.contains(words), "{lines:?}: {}", ended.err);
    }
    std::fs::remove_file(folder.path("samples.txt")).expect("it is there");
    let ended = halostream(&folder, &["plan", "job.toml"]);
    assert!(ended.code == 2 && ended.err.contains("samples.txt: No such file"), "{}", ended.err);
}

/// Entries by the strings or numbers of the array beside it, which a group of VCF-Zarr or xarray holds.
#[test]
fn entries_kept_by_the_names_of_a_group() {
    let folder = Folder::new("cli-keep-zarr");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    };
    let array = |shape: &str, chunks: &str, dtype: &str, filters: &str| {
        format!(
            "{{\"zarr_format\": 2, \"shape\": {shape}, \"chunks\": {chunks}, \"dtype\": \"{dtype}\", \"order\": \"C\", \
             \"fill_value\": null, \"filters\": {filters}, \"compressor\": null}}"
        )
    };
    write("g.zarr/.zgroup", b"{\"zarr_format\": 2}");
    write("g.zarr/u/.zarray", array("[3, 4]", "[2, 4]", "|u1", "null").as_bytes());
    write("g.zarr/u/.zattrs", b"{\"_ARRAY_DIMENSIONS\": [\"level\", \"samples\"]}");
    write("g.zarr/u/0.0", &[0, 1, 2, 3, 10, 11, 12, 13]);
    write("g.zarr/u/1.0", &[20, 21, 22, 23, 0, 0, 0, 0]);
    write("g.zarr/level/.zarray", array("[3]", "[2]", "<f4", "null").as_bytes());
    write("g.zarr/level/0", &[500f32.to_le_bytes(), 0.1f32.to_le_bytes()].concat());
    write("g.zarr/level/1", &[850.5f32.to_le_bytes(), [0; 4]].concat());
    write("g.zarr/sample_id/.zarray", array("[4]", "[3]", "|O", "[{\"id\": \"vlen-utf8\"}]").as_bytes());
    let strings = |list: &[&str]| {
        let each = list.iter().flat_map(|s| [&(s.len() as u32).to_le_bytes()[..], s.as_bytes()].concat());
        (list.len() as u32).to_le_bytes().into_iter().chain(each).collect::<Vec<u8>>()
    };
    write("g.zarr/sample_id/0", &strings(&["NA 1", "zoë", "x"]));
    write("g.zarr/sample_id/1", &strings(&["y", "", ""]));
    write("samples.txt", "y\nzoë\n".as_bytes());
    write("levels.txt", b"850.5\n0.1\n");
    let job = "[input]\npath = 'g.zarr'\narray = 'u'\n\
               keep = [{ axis = 0, file = 'levels.txt' }, { axis = 1, file = 'samples.txt' }]\n\
               [output]\npath = 'out.zarr'\nif_exists = 'overwrite'\n";
    write("job.toml", job.as_bytes());
    halostream(&folder, &["run", "job.toml", "--no-sync"]).done();
    let got = read(&folder.path("out.zarr"), Some("u"));
    assert_eq!((&got.shape[..], &got.bytes[..]), (&[2, 2][..], &[11, 13, 21, 23][..]));
    write("levels.txt", b"500.0\n");
    halostream(&folder, &["run", "job.toml", "--no-sync"]).done();
    assert_eq!(read(&folder.path("out.zarr"), Some("u")).bytes, [1, 3]);
    // Names that do not fit the axis, or cannot be read.
    write("g.zarr/sample_id/1", &[9, 0, 0, 0, 200, 0, 0, 0]);
    let ended = halostream(&folder, &["plan", "job.toml"]);
    assert!(ended.code == 2 && ended.err.contains("sample_id/1: the chunk is torn"), "{}", ended.err);
    write("g.zarr/sample_id/.zarray", array("[5]", "[3]", "|O", "[{\"id\": \"vlen-utf8\"}]").as_bytes());
    let ended = halostream(&folder, &["plan", "job.toml"]);
    assert!(ended.code == 2 && ended.err.contains("lists 5 names, the axis `samples` has 4 entries"), "{}", ended.err);
}

/// One file that numpy reads, and the job that made it beside it.
#[test]
fn files_as_outputs() {
    let folder = Folder::new("cli-npy");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path(name), bytes).expect("a file");
    let job = "[input]\npath = 'sample:volume'\nshape = [6, 50, 70]\nchunks = [4, 16, 20]\n[[step]]\nop = 'gaussian_filter'\nsigma = 1\n";
    write("job.toml", format!("{job}[output]\npath = 'out.npy'\n").as_bytes());
    write("zarr.toml", format!("{job}[output]\npath = 'out.zarr'\n").as_bytes());
    let planned = halostream(&folder, &["plan", "job.toml"]).done().out;
    assert!(planned.contains("out.npy  float32 [6, 50, 70], one file, written in parts of [6, 50, 70]\n"), "{planned}");
    halostream(&folder, &["run", "job.toml", "--verify", "1"]).done();
    halostream(&folder, &["run", "zarr.toml", "--no-sync"]).done();
    let bytes = std::fs::read(folder.path("out.npy")).expect("the file");
    assert!(bytes[128..] == read(&folder.path("out.zarr"), None).bytes);
    let shown = halostream(&folder, &["inspect", "out.npy"]).done().out;
    assert!(shown.starts_with("npy  float32 [6, 50, 70]"), "{shown}");
    let again = halostream(&folder, &["run", "job.toml"]).done().out;
    assert!(again.contains("nothing to do"), "{again}");
    let made = halostream(&folder, &["inspect", "out.npy", "--job"]).done().out;
    assert!(made.contains("op = \"gaussian_filter\""), "{made}");
    // Somebody else's file is not touched, nor what another job made.
    let ended = halostream(&folder, &["run", "job.toml", "--set", "step.0.sigma=2"]);
    assert!(ended.code == 2 && ended.err.contains("out.npy: was made by another job"), "{}", ended.err);
    write("out.npy", &bytes[..bytes.len() - 4]);
    let ended = halostream(&folder, &["run", "job.toml"]);
    assert!(ended.code == 2 && ended.err.contains("out.npy: exists and was not made by halostream"), "{}", ended.err);
    let ended = halostream(&folder, &["inspect", "out.npy", "--job"]);
    assert!(ended.code == 2 && ended.err.contains("no record of this very file in out.npy.halostream.json"), "{}", ended.err);
    halostream(&folder, &["run", "job.toml", "--set", "output.if_exists=overwrite"]).done();
    assert!(std::fs::read(folder.path("out.npy")).expect("the file") == bytes);
    let mut left: Vec<_> = std::fs::read_dir(&folder.0).expect("it").flatten().map(|e| e.file_name()).collect();
    left.sort();
    assert_eq!(left, ["job.toml", "out.npy", "out.npy.halostream.json", "out.zarr", "zarr.toml"]);
    for (sets, words) in [
        (&["output.chunks=[1, 1, 1]"][..], "output.chunks: a .npy file has none; leave it out"),
        (&["output.codec=zstd"], "output.codec: a .npy file has none"),
        (&["output.path=out.tif"], "outputs end in .zarr or .npy"),
        (&["step.0.op=ks_test", "step.0.sigma=1"], "step[0]"),
    ] {
        let mut args = vec!["plan", "job.toml"];
        args.extend(sets.iter().flat_map(|set| ["--set", *set]));
        let ended = halostream(&folder, &args);
        assert!(ended.code == 2 && ended.err.contains(words), "{sets:?}: {}", ended.err);
    }
    write("two.toml", b"[input]\npath = 'sample:slc'\nshape = [20, 20, 6]\n[[step]]\nop = 'intensity'\n[[step]]\nop = 'ks_test'\nhalf_window = [1, 1]\n[output]\npath = 'two.npy'\n");
    let ended = halostream(&folder, &["plan", "two.toml"]);
    assert!(ended.code == 2 && ended.err.contains("a .npy file holds one array, `ks_test` has several"), "{}", ended.err);
    halostream(&folder, &["run", "two.toml", "--no-sync", "--set", "output.from=ks_test.p"]).done();
}
