//! Golden values from numpy: `golden/numpy_values.py` makes them, these tests compare.

use half::f16;
use num_complex::Complex32;

use super::testing::{Whole, bind_inputs, build, fold_values, folds, map_one, run_fold};
use super::{Binding, OutAxis, StepInput, find};
use crate::array::{Block, Buffer, DType, Region};

struct Line<'a> {
    what: &'a str,
    is_exact: bool,
    dtype: DType,
    values: Vec<f64>,
}

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().map(|line| {
        let mut fields = line.split('\t');
        let mut field = || fields.next().expect("four fields");
        let (what, is_exact) = (field(), field() == "=");
        let dtype = DType::parse(field()).expect("a dtype");
        let values = field().split(' ').map(|v| v.parse().expect("a number")).collect();
        Line { what, is_exact, dtype, values }
    })
}

/// Values as doubles, complex ones as two: exact for all that the golden files hold.
fn doubles(block: &Block) -> Vec<f64> {
    let parts = if block.dtype().is_complex() { 2 } else { 1 };
    let mut bytes = vec![0; block.byte_len()];
    block.copy_to(&mut bytes);
    let dtype = match block.dtype() {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        real => real,
    };
    let size = block.dtype().size() / parts;
    bytes.chunks(size).map(|b| crate::array::Scalar::from_bytes(dtype, b).expect("its dtype's size").to_f64()).collect()
}

/// What differs, if anything.
fn check(line: &Line<'_>, found: Result<(DType, Vec<f64>), String>) -> Option<String> {
    let (dtype, got) = match found {
        Ok(found) => found,
        Err(message) => return Some(format!("{}: {message}", line.what)),
    };
    if dtype != line.dtype || got.len() != line.values.len() {
        return Some(format!("{}: {} values of {dtype}, not {} of {}", line.what, got.len(), line.values.len(), line.dtype));
    }
    let near = match dtype {
        DType::F32 | DType::C64 => 3e-7,
        DType::F16 => 1e-3,
        _ => 1e-13,
    };
    for (at, (got, want)) in got.iter().zip(&line.values).enumerate() {
        let is_same = got == want || (got.is_nan() && want.is_nan());
        let is_near = !line.is_exact && (got - want).abs() <= near * want.abs().max(1e-3);
        if !is_same && !is_near {
            return Some(format!("{} [{at}]: {got}, numpy says {want}", line.what));
        }
    }
    None
}

fn named(name: &str, block: Block) -> Whole {
    let mut whole = Whole::new(block);
    whole.meta.name = name.to_owned();
    whole
}

#[test]
fn formulas_say_what_numpy_says() {
    let nan = f32::NAN;
    let f = [0.1, -0.7, 1.5, 2.5, -3.5, 100.25, 1e-3, nan];
    let h = [0.5, -1.5, 2.25, 0.1, -0.0, 3.0, 7.5, nan].map(f16::from_f32_const);
    let z =
        [(1., 2.), (0., -3.), (0.5, 0.), (-1., 0.), (2., -1.), (3., 4.), (0.1, 0.3), (1., 0.)].map(|(a, b)| Complex32::new(a, b));
    let arrays = [
        named("i", Block::from_values(&[8], &[-3i16, -1, 0, 1, 2, 5, 7, 11])),
        named("u", Block::from_values(&[8], &[0u8, 1, 2, 3, 5, 8, 13, 100])),
        named("l", Block::from_values(&[8], &[-40i64, 3, 1, -9, 2, 1 << 40, -(1 << 40), 12])),
        named("h", Block::from_values(&[8], &h)),
        named("f", Block::from_values(&[8], &f)),
        named("d", Block::from_values(&[8], &[0.1f64, 0.2, 0.9, 1.0, -2.0, 1e10, -1e-10, f64::INFINITY])),
        named("z", Block::from_values(&[8], &z)),
        named("b", Block::new(Buffer::from_slice(&[1, 0, 0, 1, 1, 1, 0, 1]), DType::Bool, vec![8])),
    ];
    let (mut count, mut wrong) = (0, Vec::new());
    for line in lines(include_str!("golden/expression.tsv")) {
        let is_word = |c: char| c.is_alphanumeric();
        let uses = |name: &str| line.what.split(|c| !is_word(c)).any(|word| word == name);
        let inputs: Vec<&Whole> = arrays.iter().filter(|w| uses(&w.meta.name)).collect();
        let step: Vec<StepInput> =
            inputs.iter().map(|w| StepInput { meta: w.meta.clone(), boundary: None, depth: None }).collect();
        let found = bind_inputs("expression", &format!("formula = \"{}\"", line.what), &step)
            .and_then(|bound| map_one(&bound, &inputs, &Region::whole(&[8])).map_err(|e| e.to_string()))
            .map(|got| (got.dtype(), doubles(&got)));
        wrong.extend(check(&line, found));
        count += 1;
    }
    assert!(wrong.is_empty() && count > 100, "{}", wrong.join("\n"));
}

/// The arrays that numpy reduced.
fn stacks() -> [Whole; 7] {
    let shape = [4usize, 5, 6];
    let k: Vec<i64> = (0..120).collect();
    let eighths = |k: &i64| ((k * 37) % 101) as f64 / 8.0 - 6.0;
    let of = |f: &dyn Fn(&i64) -> f64| k.iter().map(f).collect::<Vec<f64>>();
    [
        named("int8", Block::from_values(&shape, &k.iter().map(|k| ((k * 37) % 251 - 125) as i8).collect::<Vec<_>>())),
        named("uint16", Block::from_values(&shape, &k.iter().map(|k| ((k * 7919) % 65521) as u16).collect::<Vec<_>>())),
        named("int64", Block::from_values(&shape, &k.iter().map(|k| (k * 7919 % 1009 - 500) << 40).collect::<Vec<_>>())),
        named("float32", Block::from_values(&shape, &of(&eighths).iter().map(|v| *v as f32).collect::<Vec<_>>())),
        named("float64", Block::from_values(&shape, &of(&eighths))),
        named(
            "bool",
            Block::new(
                Buffer::from_slice(&k.iter().map(|k| u8::from((k * 37) % 101 > 50)).collect::<Vec<_>>()),
                DType::Bool,
                shape.to_vec(),
            ),
        ),
        named(
            "holes",
            Block::from_values(
                &shape,
                &k.iter().map(|k| if k % 11 == 3 { f32::NAN } else { eighths(k) as f32 }).collect::<Vec<_>>(),
            ),
        ),
    ]
}

#[test]
fn reductions_say_what_numpy_says() {
    let arrays = stacks();
    let (mut count, mut wrong) = (0, Vec::new());
    for line in lines(include_str!("golden/reductions.tsv")) {
        let fields: Vec<&str> = line.what.split(';').collect();
        let whole = arrays.iter().find(|w| w.meta.name == fields[1]).expect("an array");
        assert!(find(fields[0]).is_some());
        for leaf in [2, 256] {
            let found = fold_values(
                fields[0],
                &fields[2..].join(
                    "
",
                ),
                &[whole],
                leaf,
            )
            .map(|(dtype, bytes)| {
                let cells = bytes.len() / dtype.size();
                (dtype, doubles(&Block::new(Buffer::from_slice(&bytes), dtype, vec![cells])))
            });
            wrong.extend(check(&line, found));
        }
        count += 1;
    }
    assert!(wrong.is_empty() && count > 200, "{}", wrong.join("\n"));
}

#[test]
fn quantiles_say_what_numpy_says() {
    let arrays = stacks();
    let (mut count, mut wrong) = (0, Vec::new());
    for line in lines(include_str!("golden/quantiles.tsv")) {
        let fields: Vec<&str> = line.what.split(';').collect();
        let whole = arrays.iter().find(|w| w.meta.name == fields[1]).expect("an array");
        let step = [StepInput { meta: whole.meta.clone(), boundary: None, depth: None }];
        let operator = build("quantile", &fields[2..].join("\n")).expect("lines that numpy took");
        let bound = operator.bind(&step).expect("axes that numpy took");
        let core = Region::whole(&whole.meta.shape);
        let one = map_one(&bound, &[whole], &core).map_err(|e| e.to_string()).map(|got| (got.dtype(), doubles(&got)));
        wrong.extend(check(&line, one));
        // The same values by narrowing passes, in leaves of any length.
        for leaf in [2, 256] {
            let mut found: Option<Whole> = None;
            for fold in folds(&*operator, &step) {
                let inputs: Vec<&Whole> = std::iter::once(whole).chain(&found).collect();
                let (dtype, bytes) = run_fold(&fold, &inputs, leaf).expect("a pass");
                let shape = shape_of(&fold, &whole.meta.shape);
                found = Some(Whole::new(Block::new(Buffer::from_slice(&bytes), dtype, shape)));
            }
            let found = found.expect("a pass").block;
            wrong.extend(check(&line, Ok((found.dtype(), doubles(&found)))));
        }
        count += 1;
    }
    assert!(wrong.is_empty() && count > 200, "{}", wrong.join("\n"));
}

/// Of a fold's only output.
fn shape_of(bound: &Binding, shape: &[u64]) -> Vec<usize> {
    let len = |axis: &OutAxis| match axis {
        OutAxis::Carried(axis) => shape[*axis] as usize,
        OutAxis::New { len, .. } => *len as usize,
        OutAxis::Laid { .. } => unreachable!("folds lay nothing"),
    };
    bound.outputs[0].axes.iter().map(len).collect()
}
