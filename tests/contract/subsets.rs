//! Lists of entries: a job over what is kept gives the bytes of the same job over an array that holds just that.

use std::fmt::Write;

use halostream::array::DType;
use halostream::config::CodecName;

use crate::common::{Array, Folder, Random, plan, read, run, write};
use crate::{CODECS, random_array};

/// The entries of each axis, picked from the whole.
fn pick(array: &Array, entries: &[Vec<u64>]) -> Array {
    let shape: Vec<u64> = entries.iter().map(|e| e.len() as u64).collect();
    let size = array.dtype.size();
    let mut bytes = Vec::new();
    for at in 0..shape.iter().product::<u64>() {
        let (mut rest, mut from, mut scale) = (at, 0, 1);
        for axis in (0..shape.len()).rev() {
            from += entries[axis][(rest % shape[axis]) as usize] * scale;
            rest /= shape[axis];
            scale *= array.shape[axis];
        }
        bytes.extend_from_slice(&array.bytes[from as usize * size..][..size]);
    }
    Array { shape, dtype: array.dtype, bytes }
}

#[test]
fn kept_entries_are_an_array_like_any_other() {
    let mut r = Random(77);
    for case in 0..40 {
        let folder = Folder::new("subset");
        let rank = r.range(1, 3) as usize;
        let shape: Vec<u64> = (0..rank).map(|_| r.range(2, 20)).collect();
        let dtype = *r.pick(&[DType::I32, DType::U8, DType::F32]);
        let whole = random_array(&mut r, dtype, &shape);
        let (mut keep, mut entries) = (String::new(), Vec::new());
        for (axis, &n) in shape.iter().enumerate() {
            let mut some: Vec<u64> = (0..n).filter(|_| r.range(0, 2) > 0).collect();
            if some.is_empty() || r.range(0, 2) == 0 {
                entries.push((0..n).collect());
                continue;
            }
            entries.push(some.clone());
            // The order of the lines says nothing.
            some.reverse();
            let lines: String = some.iter().fold(String::new(), |mut lines, i| {
                let _ = writeln!(lines, "{i}");
                lines
            });
            std::fs::write(folder.path(&format!("keep{axis}.txt")), lines).expect("a list");
            let number = if r.range(0, 1) == 0 { axis as i64 } else { axis as i64 - rank as i64 };
            let _ = write!(keep, "{{ axis = {number}, file = 'keep{axis}.txt' }}, ");
        }
        let keep = if keep.is_empty() { keep } else { format!("keep = [{}]\n", keep.trim_end_matches(", ")) };
        let chunks = |r: &mut Random, shape: &[u64]| -> Vec<u64> { shape.iter().map(|n| r.range(1, n + 1)).collect() };
        let own = chunks(&mut r, &shape);
        let shards = (r.range(0, 3) == 0).then(|| own.iter().map(|c| c * r.range(1, 3)).collect());
        write(&folder.path("whole.zarr"), &whole, &own, shards, *r.pick(&CODECS));
        let picked = pick(&whole, &entries);
        let other = chunks(&mut r, &picked.shape);
        write(&folder.path("picked.zarr"), &picked, &other, None, CodecName::Zstd);
        let select = match r.range(0, 2) {
            0 => "select = '::-1, ...'\n",
            1 if picked.shape[0] > 1 => "select = '1:, ...'\n",
            _ => "",
        };
        let step = match r.range(0, 2) {
            0 => "[[step]]\nop = 'median_filter'\nsize = 3\n".to_owned(),
            1 => format!("[[step]]\nop = 'sum'\naxis = {}\n", r.range(0, rank as u64 - 1)),
            _ => String::new(),
        };
        let engine = format!(
            "[engine]\nblock = {}\nworkers = {}\nmemory = '{}'\n",
            r.pick(&["'auto'", "'source'"]),
            r.range(1, 3),
            r.pick(&["8MiB", "1GiB"])
        );
        let job = |input: &str, keep: &str, out: &str| {
            format!("[input]\npath = '{input}.zarr'\n{select}{keep}{step}[output]\npath = '{out}.zarr'\n{engine}")
        };
        let text = job("whole", &keep, "a");
        let report = run(&text, &folder.0).unwrap_or_else(|e| panic!("case {case}: {e}\n{text}"));
        run(&job("picked", "", "b"), &folder.0).unwrap_or_else(|e| panic!("case {case}: {e}\n{text}"));
        assert!(read(&folder.path("a.zarr"), None) == read(&folder.path("b.zarr"), None), "case {case}: {shape:?}\n{text}");
        assert_eq!(report.source_chunks, report.source_chunk_reads, "case {case}\n{text}");
    }
}

/// Chunks that hold nothing that is kept are neither planned nor read.
#[test]
fn only_chunks_with_kept_entries_are_read() {
    let folder = Folder::new("subset-reads");
    let whole = random_array(&mut Random(1), DType::U8, &[100, 60]);
    write(&folder.path("x.zarr"), &whole, &[10, 20], None, CodecName::Zstd);
    std::fs::write(folder.path("rows.txt"), "99\n5\n7\n").expect("a list");
    std::fs::write(folder.path("columns.txt"), "0\n59\n").expect("a list");
    let text = "[input]\npath = 'x.zarr'\nkeep = [{ axis = 0, file = 'rows.txt' }, { axis = 1, file = 'columns.txt' }]\n\
                [output]\npath = 'out.zarr'\n";
    let planned = plan(text, &folder.0).expect("a plan");
    assert_eq!(planned.phases[0].chunks, 4);
    let report = run(text, &folder.0).expect("a run");
    assert_eq!((report.source_chunks, report.source_chunk_reads), (4, 4));
    let want = pick(&whole, &[vec![5, 7, 99], vec![0, 59]]);
    assert!(read(&folder.path("out.zarr"), None) == want);
    // Another list is another job.
    std::fs::write(folder.path("rows.txt"), "5\n7\n98\n").expect("a list");
    assert_ne!(plan(text, &folder.0).expect("a plan").hash, planned.hash);
    std::fs::write(folder.path("rows.txt"), "7\n99\n5\n").expect("a list");
    assert_eq!(plan(text, &folder.0).expect("a plan").hash, planned.hash);
}

/// Of arrays that are joined, lists are of the whole.
#[test]
fn lists_are_of_the_joined_array() {
    let folder = Folder::new("subset-joined");
    let (a, b) = (random_array(&mut Random(2), DType::I32, &[6, 8]), random_array(&mut Random(3), DType::I32, &[4, 8]));
    write(&folder.path("a.zarr"), &a, &[2, 3], None, CodecName::Zstd);
    write(&folder.path("b.zarr"), &b, &[3, 5], None, CodecName::None);
    let list = |lines: &str| std::fs::write(folder.path("keep.txt"), lines).expect("a list");
    let both = Array { shape: vec![10, 8], dtype: DType::I32, bytes: [&a.bytes[..], &b.bytes].concat() };
    let all = |n: u64| (0..n).collect::<Vec<_>>();
    let columns = vec![1, 2, 7];
    for (axis, lines, rows) in [
        (0, "1\n5\n6\n9\n", vec![1, 5, 6, 9]),
        (0, "8\n", vec![8]),
        (0, "0\n1\n2\n3\n4\n5\n7\n", vec![0, 1, 2, 3, 4, 5, 7]),
        (1, "7\n2\n1\n", all(10)),
    ] {
        list(lines);
        let text = format!(
            "[input]\npath = ['a.zarr', 'b.zarr']\nconcat = 0\nkeep = [{{ axis = {axis}, file = 'keep.txt' }}]\n\
             [output]\npath = 'out.zarr'\nif_exists = 'overwrite'\n"
        );
        run(&text, &folder.0).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let want = pick(&both, &[rows, if axis == 1 { columns.clone() } else { all(8) }]);
        assert!(read(&folder.path("out.zarr"), None) == want, "{lines:?} of axis {axis}");
    }
    // Along the axis that stacking makes.
    write(&folder.path("b.zarr"), &a, &[6, 8], None, CodecName::None);
    list("1\n");
    let text =
        "[input]\npath = ['a.zarr', 'b.zarr']\nstack = -1\nkeep = [{ axis = 2, file = 'keep.txt' }]\n[output]\npath = 's.zarr'\n";
    run(text, &folder.0).expect("a run");
    assert!(read(&folder.path("s.zarr"), None).bytes == a.bytes);
    let error = run(&text.replace("axis = 2", "axis = 3"), &folder.0).expect_err("no such axis");
    assert!(error.contains("keep: axis = 3 is not an axis of a 3-d result"), "{error}");
}
