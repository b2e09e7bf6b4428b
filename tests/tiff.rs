//! Image stacks as inputs of jobs: folders, globs and lists of frames on any grid, stopped runs, the service, samples.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Array, Folder, Random, read, run};
use halostream::engine::staging;
use tiff::encoder::colortype::Gray16;
use tiff::encoder::{Compression, TiffEncoder};

/// Writes the pages of a file, in strips of so many rows.
fn write_pages(path: &Path, [rows, cols]: [u64; 2], pages: &[&[u16]], strip: u64, is_packed: bool) {
    let mut encoded = Vec::new();
    let mut file = TiffEncoder::new(std::io::Cursor::new(&mut encoded)).expect("a header");
    if is_packed {
        file = file.with_compression(Compression::Packbits);
    }
    for page in pages {
        let mut image = file.new_image::<Gray16>(cols as u32, rows as u32).expect("an image");
        image.rows_per_strip(strip as u32).expect("a number of rows");
        image.write_data(page).expect("its values");
    }
    std::fs::write(path, encoded).expect("a file");
}

/// Random values, in runs of equal ones.
fn values(r: &mut Random, count: u64) -> Vec<u16> {
    let mut value = 0;
    let mut next = |r: &mut Random| {
        value = if r.range(0, 2) == 0 { r.next() as u16 } else { value };
        value
    };
    (0..count).map(|_| next(r)).collect()
}

struct Ended {
    code: i32,
    out: String,
    err: String,
}

fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halostream"));
    command.args(args).current_dir(&folder.0).env_remove("HALOSTREAM_LOG").stdin(Stdio::null());
    command
}

fn halostream(folder: &Folder, args: &[&str]) -> Ended {
    let ended = command(folder, args).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&folder.0.display().to_string(), "FOLDER");
    Ended { code: ended.status.code().expect("no signal ended it"), out: text(&ended.stdout), err: text(&ended.stderr) }
}

impl Ended {
    #[track_caller]
    fn done(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    #[track_caller]
    fn fails(&self, code: i32, words: &[&str]) {
        assert!(self.code == code && words.iter().all(|w| self.err.contains(w)), "exit {}: {}", self.code, self.err);
    }
}

fn job(folder: &Folder, text: &str) {
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
}

fn report(folder: &Folder) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.path("r.json")).expect("a report")).expect("JSON")
}

/// I1: frames in any number of strips, packed or not, in blocks of any size, selected and stacked along any axis.
#[test]
fn stacks_on_any_grid() {
    let mut r = Random(9);
    for round in 0..24 {
        let folder = Folder::new("tiff-grid");
        std::fs::create_dir(folder.path("film")).expect("a folder");
        // More than ten frames, so that names are not in alphabetical order.
        let [n, rows, cols] = [r.range(1, 13), r.range(1, 20), r.range(1, 20)];
        let all = values(&mut r, n * rows * cols);
        for (i, frame) in all.chunks_exact((rows * cols) as usize).enumerate() {
            let path = folder.path(&format!("film/f{i}.tif"));
            write_pages(&path, [rows, cols], &[frame], r.range(1, rows), r.range(0, 1) == 0);
        }
        std::fs::write(folder.path("film/notes.txt"), "no frame").expect("a file");
        std::fs::write(folder.path("film/.f99.tif"), "no frame").expect("a file");
        let (source, axis) = match round % 4 {
            0 => ("path = \"film\"".to_owned(), 0),
            1 => ("path = \"film/*.tif\"\nstack = 0".to_owned(), 0),
            2 => (format!("path = {:?}\nstack = -1", (0..n).map(|i| format!("film/f{i}.tif")).collect::<Vec<_>>()), 2),
            _ => ("path = \"film\"\nstack = 1".to_owned(), 1),
        };
        let mut shape = vec![rows, cols];
        shape.insert(axis, n);
        // Per axis a slice with a step, or all of it.
        let cuts: Vec<(u64, u64, bool)> = shape
            .iter()
            .map(|&len| match r.range(0, 3) {
                0 => (0, 1, false),
                1 => (0, 1, true),
                _ => (r.range(0, len - 1), r.range(1, 3), false),
            })
            .collect();
        let select: Vec<String> = cuts
            .iter()
            .map(|&(first, step, is_back)| if is_back { "::-1".to_owned() } else { format!("{first}::{step}") })
            .collect();
        let taken: Vec<Vec<u64>> = cuts
            .iter()
            .zip(&shape)
            .map(|(&(first, step, is_back), &len)| match is_back {
                true => (0..len).rev().collect(),
                false => (first..len).step_by(step as usize).collect(),
            })
            .collect();
        let mut want: Vec<u16> = Vec::new();
        for &a in &taken[0] {
            for &b in &taken[1] {
                for &c in &taken[2] {
                    let mut at = [a, b, c].to_vec();
                    let frame = at.remove(axis);
                    want.push(all[((frame * rows + at[0]) * cols + at[1]) as usize]);
                }
            }
        }
        let shape: Vec<u64> = taken.iter().map(|t| t.len() as u64).collect();
        let block: Vec<u64> = shape.iter().map(|&n| r.range(1, n)).collect();
        let chunks: Vec<u64> = shape.iter().map(|&n| r.range(1, n)).collect();
        let text = format!(
            "[input]\n{source}\nselect = \"{}\"\n[output]\npath = \"out.zarr\"\nchunks = {chunks:?}\n[engine]\nblock = {block:?}\nworkers = {}\n",
            select.join(", "),
            r.range(1, 3)
        );
        run(&text, &folder.0).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(read(&folder.path("out.zarr"), None), Array::new(&shape, &want), "{text}");
    }
}

#[test]
fn pages_of_several_files_are_joined_and_stacked() {
    let folder = Folder::new("tiff-pages");
    let all: Vec<u16> = (0..6 * 20).collect();
    let page = |n: usize| &all[n * 20..][..20];
    write_pages(&folder.path("a.tif"), [4, 5], &[page(0), page(1), page(2)], 2, false);
    write_pages(&folder.path("b.tif"), [4, 5], &[page(3), page(4)], 4, true);
    write_pages(&folder.path("c.tif"), [4, 5], &[page(5)], 1, false);
    write_pages(&folder.path("d.tif"), [4, 5], &[page(3), page(4), page(5)], 1, false);
    let mut count = 0;
    let mut made = |input: &str| {
        count += 1;
        let name = format!("out{count}.zarr");
        run(&format!("[input]\n{input}\n[output]\npath = \"{name}\"\n"), &folder.0).map(|_| read(&folder.path(&name), None))
    };
    assert_eq!(made("path = [\"a.tif\", \"b.tif\"]\nconcat = 0"), Ok(Array::new(&[5, 4, 5], &all[..100])));
    assert_eq!(made("path = [\"a.tif\", \"d.tif\"]\nstack = 0").map(|a| a.shape), Ok(vec![2, 3, 4, 5]));
    assert_eq!(made("path = \"c.tif\"\nselect = \"1\""), Ok(Array::new(&[5], &all[105..110])));
    assert_eq!(made("path = \"a.tif\"\nselect = \"-1, :, 2\""), Ok(Array::new(&[4], &[42u16, 47, 52, 57])));
    let told = made("path = [\"a.tif\", \"b.tif\"]\nstack = 0\n").unwrap_err();
    // Which of its pages is read first is up to the readers.
    assert!(
        told.contains("b.tif, page ") && told.contains(": it has 2 pages, ") && told.contains("files of one array must agree"),
        "{told}"
    );
    let told = made("path = [\"a.tif\", \"c.tif\"]\nconcat = 0\n\n").unwrap_err();
    assert!(told.contains("c.tif: has shape [4, 5]"), "{told}");
}

#[test]
fn wrong_frames_are_named() {
    let folder = Folder::new("tiff-wrong");
    std::fs::create_dir(folder.path("film")).expect("a folder");
    for n in 0..12 {
        write_pages(&folder.path(&format!("film/f{n}.tif")), [4, 5], &[&[n; 20]], 2, false);
    }
    job(&folder, "[input]\npath = \"film\"\n[output]\npath = \"out.zarr\"\nchunks = [5, 4, 5]\n");
    write_pages(&folder.path("film/f7.tif"), [4, 6], &[&[7; 24]], 4, false);
    halostream(&folder, &["run", "job.toml"])
        .fails(1, &["film/f7.tif: it has 4 x 6 pixels of uint16, the first page of", "f0.tif has 4 x 5"]);
    let bytes = std::fs::read(folder.path("film/f3.tif")).expect("a frame");
    std::fs::write(folder.path("film/f7.tif"), &bytes[..bytes.len() / 3]).expect("a frame");
    halostream(&folder, &["run", "job.toml"]).fails(1, &["film/f7.tif: "]);
    assert!(!folder.path("out.zarr").exists());
    std::fs::remove_file(folder.path("film/f0.tif")).expect("a frame");
    std::fs::write(folder.path("film/f0.tif"), "no frame").expect("a file");
    halostream(&folder, &["plan", "job.toml"]).fails(2, &["film/f0.tif: this is no TIFF file"]);
    let with = |set: &str| halostream(&folder, &["plan", "job.toml", "--set", set, "--set", "input.stack=0"]);
    with("input.path=flim").fails(2, &["flim: no such file or folder; did you mean film?"]);
    with("input.path=film/f99.tif").fails(2, &["film/f99.tif: no such file or folder; did you mean"]);
    with("input.path=film/*.png").fails(2, &["stands for nothing"]);
    std::fs::create_dir(folder.path("empty")).expect("a folder");
    with("input.path=empty").fails(2, &["empty: "]);
    halostream(&folder, &["plan", "job.toml", "--set", "input.array=u"])
        .fails(2, &["is one array, there is none called \"u\" in it"]);
}

/// Frames become bricks in less memory than they have (I2), each read once (I3), also after kills (I4), and a frame that was
/// changed makes another job of it.
#[test]
fn frames_to_bricks_through_a_kill() {
    let folder = Folder::new("tiff-kill");
    halostream(&folder, &["sample", "tiff", "film", "--shape", "240,512,512", "--no-sync", "--quiet"]).done();
    let text = "[input]\npath = \"film\"\n[output]\npath = \"out.zarr\"\nchunks = [16, 128, 128]\ncodec = { name = \"zstd\", level = 9 }\n\
                [engine]\nmemory = \"24MiB\"\n";
    job(&folder, text);
    let mut child = command(&folder, &["run", "job.toml", "--quiet", "--no-sync"]).spawn().expect("the binary starts");
    let (since, out) = (Instant::now(), folder.path("out.zarr"));
    let stored = || {
        let staged = staging::beside(&out).first().map(|left| left.path.join("c"));
        staged.and_then(|c| std::fs::read_dir(c).ok()).map_or(0, Iterator::count)
    };
    while stored() < 3 {
        assert!(since.elapsed() < Duration::from_secs(120), "nothing is stored");
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it was killed");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("a child");
    child.wait().expect("an end");
    assert!(!out.exists());
    halostream(&folder, &["run", "job.toml", "--quiet", "--no-sync", "--report", "r.json", "--set", "engine.memory=32MiB"])
        .done();
    let report = report(&folder);
    let count = |key: &str| report[key].as_u64().expect("a number");
    assert!(count("blocks_resumed") > 0 && count("blocks_computed") < count("blocks_total"), "{report}");
    assert!(count("source_chunk_reads") <= count("source_chunks"), "{report}");
    assert!(count("peak_rss_bytes") <= (32 << 20) + (64 << 20), "{report}");

    // The film as the generator makes it, without files between.
    run("[input]\npath = \"sample:tiff\"\nshape = [240, 512, 512]\n[output]\npath = \"want.zarr\"\n", &folder.0).expect("a job");
    assert!(read(&out, None) == read(&folder.path("want.zarr"), None));
    assert!(halostream(&folder, &["run", "job.toml"]).done().out.starts_with("nothing to do"));
    let frame = std::fs::read(folder.path("film/frame_00003.tif")).expect("a frame");
    std::fs::write(folder.path("film/frame_00003.tif"), frame).expect("a frame");
    halostream(&folder, &["run", "job.toml"]).fails(2, &["out.zarr"]);
}

/// A folder of frames that arrives file by file is taken when it has settled.
#[test]
fn the_service_takes_folders() {
    let folder = Folder::new("tiff-service");
    std::fs::create_dir_all(folder.path("in/film")).expect("a folder");
    job(&folder, "[input]\npath = \"{input}\"\n[output]\npath = \"{output}\"\nchunks = [4, 8, 8]\n");
    let service = "[service]\nlisten = \"none\"\nstate = \"state\"\nquarantine = \"bad\"\n[[watch]]\nname = \"films\"\ndirectory = \"in\"\n\
                   pattern = \"*\"\ncomplete = [\"settle:300ms\"]\njob = \"job.toml\"\noutput = \"out/{stem}.zarr\"\npoll = \"50ms\"\n";
    std::fs::write(folder.path("service.toml"), service).expect("a service file");
    let mut child = command(&folder, &["serve", "service.toml", "--until-idle", "2s"]).spawn().expect("the binary starts");
    let mut all = Vec::new();
    for n in 0..11u16 {
        let frame: Vec<u16> = (0..64).map(|i| n * 64 + i).collect();
        write_pages(&folder.path(&format!("in/film/f{n}.tif")), [8, 8], &[&frame], 3, n % 2 == 0);
        all.extend(frame);
        std::thread::sleep(Duration::from_millis(30));
    }
    // Frames that don't agree: this input is given up, the other one is not hurt.
    std::fs::create_dir(folder.path("in/bad")).expect("a folder");
    write_pages(&folder.path("in/bad/a.tif"), [2, 2], &[&[1; 4]], 1, false);
    write_pages(&folder.path("in/bad/b.tif"), [3, 2], &[&[1; 6]], 1, false);
    assert!(child.wait().expect("an end").code().is_some());
    assert_eq!(read(&folder.path("out/film.zarr"), None), Array::new(&[11, 8, 8], &all));
    assert!(!folder.path("out/bad.zarr").exists());
    let records = std::fs::read_dir(folder.path("bad")).expect("a folder").flatten();
    let text: String = records.map(|e| std::fs::read_to_string(e.path()).expect("a record")).collect();
    assert!(text.contains("b.tif: it has 3 x 2 pixels"), "{text}");
}

#[test]
fn samples_are_folders_of_frames() {
    let folder = Folder::new("tiff-sample");
    let said = halostream(&folder, &["sample", "tiff", "film", "--shape", "11,40,50", "--seed", "3", "--no-sync"]).done().out;
    assert!(said.starts_with("wrote film in ") && said.contains(": 11 frames, "), "{said}");
    let names: Vec<_> = std::fs::read_dir(folder.path("film")).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert!(names.len() == 11 && names.iter().any(|n| n == "frame_00010.tif"), "{names:?}");
    let shown = halostream(&folder, &["inspect", "film"]).done().out;
    assert_eq!(shown, "tiff  uint16 [11, 40, 50]\n  chunks      [1, 40, 50]\n  dimensions  frame, y, x\n");
    for dtype in ["uint16", "uint8", "float32"] {
        let film = format!("film-{dtype}");
        halostream(&folder, &["sample", "tiff", &film, "--shape", "3,40,50", "--dtype", dtype, "--memory", "1MiB", "--quiet"])
            .done();
        let made = |path: &str, out: &str, keys: &str| {
            run(&format!("[input]\npath = \"{path}\"\n{keys}[output]\npath = \"{out}\"\n"), &folder.0).expect("a job");
            read(&folder.path(out), None)
        };
        let want = made("sample:tiff", &format!("a-{dtype}.zarr"), &format!("shape = [3, 40, 50]\ndtype = \"{dtype}\"\n"));
        assert!(made(&film, &format!("b-{dtype}.zarr"), "") == want, "{dtype}");
    }
    halostream(&folder, &["sample", "tiff", "film.zarr", "--shape", "3,40,50", "--quiet"]).done();
    assert_eq!(read(&folder.path("film.zarr"), None).shape, [3, 40, 50]);
    let refused =
        |args: &[&str], want: &str| halostream(&folder, &[&["sample", "tiff"], args].concat()).fails(2, &["sample: ", want]);
    refused(&["film"], "OUT: film is there already");
    refused(&["x", "--chunks", "1,2,3"], "--chunks: each frame is a file of its own");
    refused(&["x", "--codec", "zstd"], "--codec: frames are not packed");
    refused(&["x", "--shape", "3,4"], "shape has 2 entries, tiff has 3 axes (frame, y, x)");
    refused(&["x", "--dtype", "int64"], "dtype int64 is not made");
    refused(&["x", "--shape", "2,1000,1000", "--memory", "1MiB"], "--memory: 1.00MiB is below the ");
    assert!(!folder.path("x").exists());
}
