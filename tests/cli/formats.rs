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
