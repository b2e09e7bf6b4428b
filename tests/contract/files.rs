//! `.npy` outputs: the bytes of the same job's Zarr output, whatever the blocks, in one file that numpy reads.

use halostream::array::{DType, npy};

use crate::common::{Folder, Random, read, run, write};
use crate::{CODECS, random_array, random_shape};

#[test]
fn files_hold_what_stores_hold() {
    let mut r = Random(91);
    for case in 0..40 {
        let folder = Folder::new("npy");
        let rank = r.range(1, 4) as usize;
        let shape = random_shape(&mut r, rank, if rank == 1 { 40_000 } else { 24 });
        let dtype = *r.pick(&[DType::I16, DType::U8, DType::F64, DType::C64, DType::Bool]);
        let x = random_array(&mut r, dtype, &shape);
        let chunks: Vec<u64> = shape.iter().map(|n| r.range(n / 5 + 1, n + 2)).collect();
        write(&folder.path("x.zarr"), &x, &chunks, None, *r.pick(&CODECS));
        let step = match (r.range(0, 2), dtype) {
            (0, DType::I16 | DType::U8) => "[[step]]\nop = 'median_filter'\nsize = 3\n",
            (1, DType::I16 | DType::F64) => "[[step]]\nop = 'sum'\n",
            _ => "",
        };
        let block = match r.range(0, 2) {
            0 => "'auto'".to_owned(),
            1 => "'source'".to_owned(),
            _ => format!("{:?}", shape.iter().map(|n| r.range(n / 5 + 1, n + 1)).collect::<Vec<_>>()),
        };
        let engine =
            format!("[engine]\nblock = {block}\nworkers = {}\nmemory = '{}'\n", r.range(1, 3), r.pick(&["32MiB", "1GiB"]));
        let text = format!("[input]\npath = 'x.zarr'\n{step}[outputs.a]\npath = 'a.npy'\n[outputs.b]\npath = 'b.zarr'\n{engine}");
        let report = run(&text, &folder.0).unwrap_or_else(|e| panic!("case {case}: {e}\n{text}"));
        assert!(report.objects_written >= 2, "case {case}\n{text}");
        let bytes = std::fs::read(folder.path("a.npy")).expect("the file");
        let header = npy::Header::parse(&bytes).expect("a header");
        let want = read(&folder.path("b.zarr"), None);
        assert_eq!((&header.shape, header.dtype, header.is_fortran), (&want.shape, want.dtype, false), "case {case}\n{text}");
        assert!(bytes[header.data..] == want.bytes, "case {case}: other values\n{text}");
        assert!(bytes[..header.data] == npy::header(want.dtype, &want.shape), "case {case}");
    }
}
