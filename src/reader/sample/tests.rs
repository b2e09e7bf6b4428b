//! What holds for every kind: chunk grids do not matter (I1), bytes do not change unnoticed, wrong requests are refused;
//! and what the data are for: bodies, noise, layers, a fault.

use super::*;
use crate::array::grid::for_each_index;

pub(super) fn spec(kind: &str, shape: &[u64], chunks: &[u64]) -> SampleSpec {
    SampleSpec { kind: kind.to_owned(), shape: Some(shape.to_vec()), chunks: Some(chunks.to_vec()), dtype: None, seed: 7 }
}

/// The whole array, read chunk by chunk, last chunk first.
pub(super) fn read_all(spec: &SampleSpec) -> Vec<u8> {
    let source = open(spec).unwrap();
    let meta = source.meta();
    let (shape, item) = (meta.array.shape.clone(), meta.array.dtype.size());
    let mut whole = vec![0u8; element_count(&shape).unwrap() as usize * item];
    let mut buffer = vec![0u8; element_count(&meta.chunk_shape).unwrap() as usize * item];
    let lists: Vec<Vec<u64>> = meta.grid.0.iter().map(|a| (0..a.cells()).rev().collect()).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    for_each_index::<()>(&lists, |chunk| {
        buffer.fill(0xee);
        let read = source.read_chunk(chunk, &mut buffer, &mut Vec::new()).unwrap();
        assert_eq!(read, ChunkRead::Data { encoded_bytes: 0 });
        let ranges: Vec<Vec<u64>> = chunk.iter().zip(&meta.grid.0).map(|(&i, a)| a.range(i).collect()).collect();
        let start: Vec<u64> = ranges.iter().map(|r| r[0]).collect();
        let ranges: Vec<&[u64]> = ranges.iter().map(Vec::as_slice).collect();
        for_each_index::<()>(&ranges, |at| {
            let to = at.iter().zip(&shape).fold(0, |o, (i, n)| o * n + i) as usize * item;
            let from = at.iter().zip(&start).zip(&meta.chunk_shape).fold(0, |o, ((i, s), n)| o * n + i - s) as usize * item;
            whole[to..to + item].copy_from_slice(&buffer[from..from + item]);
            Ok(())
        })
    })
    .unwrap();
    whole
}

/// FNV-1a
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// A shape per kind that is small and crosses the generator's own cells.
fn small(kind: &str) -> Vec<u64> {
    match kind {
        "slc" => vec![53, 61, 7],
        "volume" => vec![50, 53, 99],
        "genotypes" => vec![9, 4103],
        _ => vec![7, 11, 1030],
    }
}

fn grids(kind: &str) -> Vec<Vec<u64>> {
    match kind {
        "slc" => vec![vec![20, 61, 7], vec![53, 7, 7], vec![1, 100, 2], vec![10, 13, 3]],
        "volume" => vec![vec![50, 53, 1], vec![7, 50, 30], vec![64, 64, 64], vec![1, 1, 99]],
        "genotypes" => vec![vec![9, 1], vec![4, 4097], vec![1, 7], vec![100, 1000]],
        _ => vec![vec![7, 11, 1], vec![2, 3, 100], vec![1, 1, 1024], vec![10, 20, 333]],
    }
}

fn every_dtype() -> impl Iterator<Item = SampleSpec> {
    KINDS.iter().flat_map(|kind| {
        let shape = small(kind.name);
        kind.dtypes.iter().map(move |d| SampleSpec { dtype: Some(*d), ..spec(kind.name, &shape, &shape) })
    })
}

#[test]
fn i1_the_chunk_grid_does_not_change_a_byte() {
    for whole in every_dtype() {
        let expected = read_all(&whole);
        assert_eq!(expected, read_all(&whole), "{whole:?}");
        for chunks in grids(&whole.kind) {
            let cut = SampleSpec { chunks: Some(chunks), ..whole.clone() };
            assert!(expected == read_all(&cut), "{cut:?}");
            assert_eq!(open(&cut).unwrap().meta.identity, open(&whole).unwrap().meta.identity);
        }
    }
}

#[test]
fn i1_the_bytes_are_those_of_every_machine() {
    // Literals, so that a change of a generator is noticed: then raise the kind's `version` with the checksum.
    let expected = [
        0xeef6_4664_de97_7f00, // slc c64
        0xf0ac_fc38_e4d6_93d4, // slc c128
        0xb37a_4e2b_fc6a_3516, // volume f32
        0x8dac_1cc0_cbd2_6b0d, // volume f64
        0x6284_e767_0c77_dc5a, // volume u8
        0x6031_6688_3daa_e9fb, // volume u16
        0x6031_6688_3daa_e9fb, // volume i16
        0xd52a_d7dc_c68e_e2db, // volume i64
        0xe0dc_1e1e_86a7_a303, // genotypes u8
        0x5b90_7612_9345_de19, // seismic f32
        0x99e8_5fb9_26a4_ce9a, // seismic f64
        0xeeea_7a9d_eca5_5f41, // tiff u16
        0xea6d_b554_e5e3_47d5, // tiff u8
        0xfa55_4724_a4ca_d481, // tiff f32
    ];
    let found: Vec<u64> = every_dtype().map(|s| checksum(&read_all(&s))).collect();
    assert_eq!(found, expected, "found {found:#018x?}");
}

#[test]
fn another_seed_gives_other_values_and_another_identity() {
    for one in every_dtype() {
        let other = SampleSpec { seed: 8, ..one.clone() };
        let (a, b) = (read_all(&one), read_all(&other));
        let differs = a.iter().zip(&b).filter(|(a, b)| a != b).count();
        assert!(differs * 10 > a.len(), "{one:?}: {differs} of {}", a.len());
        assert_ne!(open(&one).unwrap().meta.identity, open(&other).unwrap().meta.identity);
    }
}

#[test]
fn what_is_known_of_a_sample() {
    let bare = |kind: &str| SampleSpec { kind: kind.to_owned(), shape: None, chunks: None, dtype: None, seed: 0 };
    let slc = open(&bare("slc")).unwrap().meta;
    assert_eq!((slc.array.shape, slc.chunk_shape), (vec![2500, 1834, 17], vec![1000, 1000, 17]));
    assert_eq!(slc.identity, "sample:slc version=1 shape=2500x1834x17 dtype=complex64 seed=0");
    assert_eq!(slc.array.dimension_names, ["azimuth", "range", "image"].map(|n| Some(n.to_owned())));
    assert_eq!((slc.fill_value, slc.transient_bytes, slc.zarr_format), (Scalar::zero(DType::C64), 0, None));
    let genotypes = open(&bare("genotypes")).unwrap().meta.array;
    assert_eq!((genotypes.missing, genotypes.max_value), (Some(Scalar::of(3u8)), Some(3)));
    let chunks =
        |kind: &str, shape: &[u64]| open(&SampleSpec { shape: Some(shape.to_vec()), ..bare(kind) }).unwrap().meta.chunk_shape;
    assert_eq!(chunks("slc", &[100, 50, 3]), [100, 50, 3]);
    assert_eq!(chunks("slc", &[2500, 1834, 40]), [250, 123, 40]);
    assert_eq!(chunks("volume", &[10, 600, 600]), [10, 60, 60]);
    assert_eq!(chunks("slc", &[1100, 600, 17]), [220, 300, 17]);
    assert_eq!(chunks("genotypes", &[100_000, 5000]), [5000, 1667]);
}

#[test]
fn wrong_requests_are_refused_with_what_to_do() {
    let good = spec("slc", &[10, 10, 3], &[5, 5, 3]);
    let refusal = |s: SampleSpec| open(&s).err().expect("refused").to_string();
    let unknown = refusal(SampleSpec { kind: "genotype".into(), ..good.clone() });
    assert_eq!(
        unknown,
        "sample:genotype: there is no sample \"genotype\" (samples are slc, volume, genotypes, seismic, tiff); did you mean \"genotypes\"?"
    );
    let dtype = refusal(SampleSpec { dtype: Some(DType::F32), ..good.clone() });
    assert_eq!(dtype, "sample:slc: dtype float32 is not made; choose one of complex64, complex128");
    let rank = refusal(SampleSpec { shape: Some(vec![10, 10]), ..good.clone() });
    assert_eq!(rank, "sample:slc: shape has 2 entries, slc has 3 axes (azimuth, range, image)");
    assert!(refusal(SampleSpec { chunks: Some(vec![5, 5, 3, 1]), ..good.clone() }).contains("chunks has 4 entries"));
    assert!(refusal(SampleSpec { chunks: Some(vec![5, 0, 3]), ..good.clone() }).contains("range must be from 1"));
    assert!(refusal(SampleSpec { shape: Some(vec![1 << 40, 1 << 40, 3]), ..good.clone() }).contains("2^63"));
    assert!(refusal(SampleSpec { shape: Some(vec![u64::MAX, 2, 3]), ..good.clone() }).contains("azimuth must be"));
    assert!(refusal(SampleSpec { shape: Some(vec![9, 9, 5000]), ..good.clone() }).contains("at most 4096 images"));
    let huge = SampleSpec { shape: Some(vec![1 << 30, 1 << 20, 3]), chunks: Some(vec![1 << 30, 1 << 20, 3]), ..good.clone() };
    assert!(refusal(huge).contains("make them smaller"));
    // a caller that mistakes the grid gets an error, not a panic
    let source = open(&good).unwrap();
    assert!(source.read_chunk(&[2, 0, 0], &mut [0; 600], &mut Vec::new()).is_err());
    assert!(source.read_chunk(&[0, 0, 0], &mut [0; 599], &mut Vec::new()).is_err());
    assert!(source.read_chunk(&[0, 0], &mut [0; 600], &mut Vec::new()).is_err());
}

fn floats(kind: &str, shape: &[u64]) -> Vec<f64> {
    let bytes = read_all(&SampleSpec { dtype: Some(DType::F64), ..spec(kind, shape, shape) });
    bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect()
}

#[test]
fn volume_has_bodies_of_several_densities_in_every_dtype() {
    let shape = [96u64, 96, 96];
    let values = floats("volume", &shape);
    let share = |low: f64, high: f64| values.iter().filter(|v| (low..high).contains(*v)).count() as f64 / values.len() as f64;
    assert!(values.iter().all(|v| (0.0..20_000.0).contains(v)));
    assert!(share(100.0, 320.0) > 0.1 && share(320.0, 700.0) > 0.1 && share(700.0, 20_000.0) > 0.03);
    // noise: neighbours in the background differ by about sqrt(2 * 205) counts
    let noise = values.windows(2).filter(|w| w[0] < 260.0 && w[1] < 260.0).map(|w| (w[1] - w[0]).powi(2));
    let (n, sum) = noise.fold((0.0, 0.0), |(n, s), d| (n + 1.0, s + d));
    assert!((250.0..700.0).contains(&(sum / n)), "{}", sum / n);
    let bytes = |dtype| read_all(&SampleSpec { dtype: Some(dtype), ..spec("volume", &shape, &shape) });
    let u16s = bytes(DType::U16);
    for (v, u) in values.iter().zip(u16s.chunks_exact(2)) {
        assert_eq!(f64::from(bytemuck::pod_read_unaligned::<u16>(u)), (v + 0.5).floor());
    }
    assert_eq!(u16s, bytes(DType::I16));
    let u8s = bytes(DType::U8);
    assert!(values.iter().zip(&u8s).all(|(v, u)| f64::from(*u) == (v / 16.0 + 0.5).floor().min(255.0)));
}

#[test]
fn seismic_traces_are_alike_beside_each_other_and_not_across_the_fault() {
    let (inlines, crosslines, samples) = (3u64, 200u64, 256u64);
    let values = floats("seismic", &[inlines, crosslines, samples]);
    let trace = |x: usize| &values[(200 + x) * 256..][..256];
    let likeness = |a: &[f64], b: &[f64]| {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    let beside: Vec<f64> = (0..199).map(|x| likeness(trace(x), trace(x + 1))).collect();
    let mean = beside.iter().sum::<f64>() / 199.0;
    assert!((0.7..0.99).contains(&mean), "{mean}");
    assert!(likeness(trace(0), trace(199)) < 0.5);
    let size = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
    assert!((0.05..2.0).contains(&size) && values.iter().all(|v| v.abs() < 12.0), "{size}");
}
