use super::super::formula::syntax::{Node, parse};
use super::super::testing::{Random, Whole, bind, bind_inputs, map_one, values};
use super::super::{Binding, StepInput};
use crate::array::{Block, Region, Scalar};

fn whole(name: &str, block: Block) -> Whole {
    let mut whole = Whole::new(block);
    whole.meta.name = name.to_owned();
    whole
}

fn bound(formula: &str, inputs: &[&Whole]) -> Result<Binding, String> {
    let inputs: Vec<StepInput> = inputs.iter().map(|w| StepInput { meta: w.meta.clone(), boundary: None, depth: None }).collect();
    bind_inputs("expression", &format!("formula = {formula:?}"), &inputs)
}

fn run<D: bytemuck::Pod>(formula: &str, inputs: &[&Whole]) -> Result<Vec<D>, String> {
    let bound = bound(formula, inputs)?;
    let core = Region::whole(&inputs[bound.reference].meta.shape);
    map_one(&bound, inputs, &core).map(|b| values(&b)).map_err(|e| e.to_string())
}

#[test]
fn precedence_is_pythons() {
    let same = |a: &str, b: &str| assert_eq!(parse(a).unwrap(), parse(b).unwrap(), "{a}");
    same("a + b * c ** d ** e", "a + (b * (c ** (d ** e)))");
    same("-a ** 2", "-(a ** 2)");
    same("2 ** -a", "2 ** (-a)");
    same("-a * b", "(-a) * b");
    same("a - b - c // d / e % f", "(a - b) - (((c // d) / e) % f)");
    same("a & b | c ^ d & e", "(a & b) | (c ^ (d & e))");
    same("a < b + 1", "a < (b + 1)");
    same("a | b == c", "(a | b) == c");
    same(" where( x>0 ,x , ks_test.p )", "where(x > 0, x, ks_test.p)");
    assert_eq!(parse("1e-3").unwrap(), parse("0.001").unwrap());
    assert_eq!(parse("2j").unwrap(), Node::Imaginary(2.0));
}

#[test]
fn what_cannot_be_read_says_where() {
    let error = |text: &str| parse(text).unwrap_err();
    assert_eq!(error("x +"), "ends too early: \"x +\"");
    assert_eq!(error("x + * 2"), "cannot be read from \"* 2\" on");
    assert_eq!(error("x y"), "cannot be read from \"y\" on");
    assert!(error("(x + 1").starts_with("ends too early"));
    assert!(error("a < b < c").starts_with("cannot be read from \"< c\""));
    assert!(error("sqrtt(x)").contains("did you mean `sqrt`"));
    assert!(error("where(x, 1)").contains("with 2 arguments, it takes 3"));
    assert!(error("x + 99999999999999999999").contains("does not fit 64 bits"));
    assert!(error("").starts_with("ends too early"));
    assert!(error(&"(".repeat(5000)).contains("bytes long"));
    assert!(error(&"(".repeat(1000)).contains("nested deeper"));
    assert!(error(&"-".repeat(1000)).contains("nested deeper"));
    assert!(error(&"x**".repeat(1000)).contains("nested deeper"));
    assert!(error("x; y").contains("\"; y\""));
}

#[test]
fn folds_broadcast_and_cuts_equal_the_whole() {
    let mut random = Random::new(9);
    let shape = [5usize, 7, 300];
    let x: Vec<f32> = (0..5 * 7 * 300).map(|_| (random.unit() - 0.5) as f32).collect();
    let m: Vec<f32> = (0..7).map(|i| 1.0 + i as f32).collect();
    let x = whole("x", Block::from_values(&shape, &x));
    let m = whole("m", Block::from_values(&[7, 1], &m));
    let s = whole("s", Block::from_values(&[], &[0.25f32]));
    let bound = bound("(x - s) / m", &[&m, &x, &s]).unwrap();
    assert_eq!(bound.reference, 1);
    let inputs = [&m, &x, &s];
    let all: Vec<f32> = values(&map_one(&bound, &inputs, &Region::whole(&x.meta.shape)).unwrap());
    let raw: Vec<f32> = values(&x.block);
    for (i, got) in all.iter().enumerate() {
        assert_eq!(got.to_bits(), ((raw[i] - 0.25) / (1.0 + (i / 300 % 7) as f32)).to_bits());
    }
    let core = Region::from_ranges(&[(1, 4), (2, 7), (13, 251)]);
    let part: Vec<f32> = values(&map_one(&bound, &inputs, &core).unwrap());
    for (i, got) in part.iter().enumerate() {
        let at = ((1 + i / (5 * 238)) * 7 + 2 + i / 238 % 5) * 300 + 13 + i % 238;
        assert_eq!(got.to_bits(), all[at].to_bits());
    }
    // Any strides.
    let mut turned = whole("x", x.block.transposed(&[2, 0, 1]));
    turned.meta.shape = vec![300, 5, 7];
    assert_eq!(run::<f32>("x * 2", &[&turned]).unwrap()[1], raw[300] * 2.0);
}

#[test]
fn integers_never_wrap() {
    let i = whole("i", Block::from_values(&[3], &[100i8, -128, 3]));
    assert_eq!(run::<i8>("i // 2", &[&i]).unwrap(), [50, -64, 1]);
    let error = |formula: &str| run::<i8>(formula, &[&i]).unwrap_err();
    assert_eq!(error("i + 100"), "100 + 100 is 200, which int8 cannot hold; cast the input to a wider dtype first at [0]");
    assert!(error("-i").contains("-(-128) is 128"));
    assert!(error("abs(i)").contains("abs(-128) is 128"));
    assert!(error("1 // (i // 4)").contains("1 // 0 divides an integer by zero at [2]"));
    assert!(error("i ** i").contains("has no 64-bit integer result"));
    assert!(error("i + 300").contains("holds 300, which the int8 that it meets cannot hold"));
    let u = whole("u", Block::from_values(&[2], &[1u64, 1 << 63]));
    assert!(run::<u64>("u + 1", &[&u]).unwrap_err().contains("beyond int64"));
    assert!(bound("~u", &[&u]).is_err_and(|e| e.contains("beyond int64")));
}

#[test]
fn names_inputs_and_dtypes_are_checked() {
    let x = whole("x", Block::from_values(&[2], &[1.0f32, 2.0]));
    let y = whole("y", Block::from_values(&[3], &[1.0f32; 3]));
    let b = whole("b", Block::from_values(&[2], &[num_complex::Complex32::default(); 2]));
    let error = |formula: &str, inputs: &[&Whole]| bound(formula, inputs).unwrap_err();
    assert!(error("x + z", &[&x]).contains("names `z`, the inputs are x"));
    assert!(error("x + 1", &[&x, &y]).contains("does not use `y`"));
    assert!(error("x + y", &[&x, &y]).contains("do not broadcast"));
    assert!(error("b < 1", &[&b]).contains("complex numbers have no order"));
    assert!(error("sin(b)", &[&b]).contains("take abs, angle, real or imag"));
    assert!(error("x & 1", &[&x]).contains("compare first"));
    assert!(error("(x > 0) + (x > 1)", &[&x]).contains("use & | ^ ~"));
    let step = |lines: &str| {
        let inputs = [&x].map(|w| StepInput { meta: w.meta.clone(), boundary: None, depth: None });
        bind_inputs("expression", lines, &inputs)
    };
    assert!(step("formula = \"q + 1\"\nnames = [\"q\"]").is_ok());
    assert!(step("formula = \"q + 1\"\nnames = [\"q\", \"r\"]").unwrap_err().contains("names has 2 entries"));
    assert!(step("").unwrap_err().contains("formula: missing"));
    assert!(step("formula = \"x +\"").unwrap_err().contains("line 1: step.formula: ends too early"));
    assert!(step("formula = \"2 * pi\"").unwrap_err().contains("does not use `x`"));
}

#[test]
fn missing_values_are_dealt_with_or_refused() {
    let mut x = whole("x", Block::from_values(&[3], &[1u8, 3, 2]));
    x.meta.missing = Some(Scalar::of(3u8));
    assert!(run::<u8>("x * 2", &[&x]).unwrap_err().contains("3 at [1] is the source's missing value"));
    let inputs = [StepInput { meta: x.meta.clone(), boundary: None, depth: None }];
    let bound = bind_inputs("expression", "formula = \"where(x == 3, nan, x)\"\nmissing = \"value\"", &inputs).unwrap();
    let got: Vec<f64> = values(&map_one(&bound, &[&x], &Region::whole(&[3])).unwrap());
    assert!(got[0] == 1.0 && got[1].is_nan() && got[2] == 2.0);
}

#[test]
fn where_clip_and_threshold() {
    fn one<D: bytemuck::Pod>(op: &str, lines: &str, inputs: &[&Whole]) -> Result<Vec<D>, String> {
        let bound = bind(op, lines, inputs)?;
        let core = Region::whole(&inputs[bound.reference].meta.shape);
        map_one(&bound, inputs, &core).map(|b| values(&b)).map_err(|e| e.to_string())
    }
    let x = whole("x", Block::from_values(&[4], &[1.5f32, -2.0, f32::NAN, 9.0]));
    let c = whole("c", Block::from_values(&[4], &[1i32, 0, 0, -1]));
    assert_eq!(one::<f32>("where", "y = 0", &[&c, &x]).unwrap(), [1.5, 0.0, 0.0, 9.0]);
    assert_eq!(one::<f32>("where", "x = 7.5", &[&c, &x]).unwrap()[..2], [7.5, -2.0]);
    assert_eq!(one::<i64>("where", "x = 1\ny = 2", &[&c]).unwrap(), [1, 2, 2, 1]);
    assert!(one::<f32>("where", "y = \"nan\"", &[&c, &x]).unwrap()[1].is_nan());
    assert!(bind("where", "y = 1", &[&c]).unwrap_err().contains("where needs 2 inputs here"));
    let got = one::<f32>("clip", "min = 0\nmax = 2.5", &[&x]).unwrap();
    assert!(got[..2] == [1.5, 0.0] && got[2].is_nan() && got[3] == 2.5);
    let u = whole("u", Block::from_values(&[3], &[0u8, 100, 255]));
    assert_eq!(one::<u8>("clip", "min = -5\nmax = 200", &[&u]).unwrap(), [0, 100, 200]);
    assert_eq!(one::<u8>("clip", "min = 7.0\nmax = inf", &[&u]).unwrap(), [7, 100, 255]);
    assert!(bind("clip", "min = 0.5", &[&u]).unwrap_err().contains("min: 0.5 is no uint8"));
    assert!(bind("clip", "", &[&u]).unwrap_err().contains("needs min, max or both"));
    assert!(bind("clip", "min = 3\nmax = 1", &[&u]).unwrap_err().contains("lies below min"));
    assert_eq!(one::<u8>("threshold", "value = 1", &[&x]).unwrap(), [1, 0, 0, 1]);
    assert_eq!(one::<u8>("threshold", "value = 300\ncompare = \"<=\"", &[&u]).unwrap(), [1, 1, 1]);
    assert_eq!(one::<u8>("threshold", "value = 99.5", &[&u]).unwrap(), [0, 1, 1]);
    assert!(bind("threshold", "value = 1\ncompare = \"=\"", &[&u]).unwrap_err().contains("none of"));
    assert!(bind("threshold", "", &[&u]).unwrap_err().contains("give the number"));
}
