//! The arithmetic of formulas over short slices: one loop per function and kind of number.
//!
//! Numbers are of four kinds: bools, integers (64 bits with sign), reals and complex numbers (float64, rounded to the dtype
//! after every function; for + - * / and sqrt that equals computing in the dtype itself). Integer results are checked
//! against their dtype. Functions beyond the arithmetic are `libm`'s: the system's differ in their last bits.

use num_complex::Complex64;

use super::function::Function;
use crate::array::DType;
use crate::array::dtype::f16_from_f64;

/// Elements worked on at a time: all values of a formula stay in the nearest caches.
pub const LANE: usize = 512;

/// Up to [`LANE`] values of one kind.
#[derive(Clone, Debug)]
pub enum Lane {
    Bool(Vec<bool>),
    Int(Vec<i64>),
    Real(Vec<f64>),
    Complex(Vec<Complex64>),
}

/// What a dtype is computed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int,
    Real,
    Complex,
}

impl Kind {
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::Bool => Kind::Bool,
            d if d.is_integer() => Kind::Int,
            d if d.is_float() => Kind::Real,
            _ => Kind::Complex,
        }
    }
}

impl Lane {
    pub fn new(kind: Kind) -> Self {
        match kind {
            Kind::Bool => Lane::Bool(vec![false; LANE]),
            Kind::Int => Lane::Int(vec![0; LANE]),
            Kind::Real => Lane::Real(vec![0.0; LANE]),
            Kind::Complex => Lane::Complex(vec![Complex64::default(); LANE]),
        }
    }
}

/// Why element `at` has no result.
#[derive(Debug)]
pub struct Fault {
    pub at: usize,
    pub why: String,
}

fn map<A: Copy, D>(a: &[A], out: &mut [D], f: impl Fn(A) -> D) {
    out.iter_mut().zip(a).for_each(|(d, a)| *d = f(*a));
}

fn zip<A: Copy, D>(a: &[A], b: &[A], out: &mut [D], f: impl Fn(A, A) -> D) {
    out.iter_mut().zip(a.iter().zip(b)).for_each(|(d, (a, b))| *d = f(*a, *b));
}

/// One value for every value of another kind.
pub fn convert(from: &Lane, to: &mut Lane, n: usize) {
    match (from, to) {
        (Lane::Bool(a), Lane::Int(d)) => map(&a[..n], d, i64::from),
        (Lane::Bool(a), Lane::Real(d)) => map(&a[..n], d, |v| f64::from(u8::from(v))),
        (Lane::Bool(a), Lane::Complex(d)) => map(&a[..n], d, |v| f64::from(u8::from(v)).into()),
        (Lane::Int(a), Lane::Bool(d)) => map(&a[..n], d, |v| v != 0),
        (Lane::Int(a), Lane::Real(d)) => map(&a[..n], d, |v| v as f64),
        (Lane::Int(a), Lane::Complex(d)) => map(&a[..n], d, |v| (v as f64).into()),
        (Lane::Real(a), Lane::Bool(d)) => map(&a[..n], d, |v| v != 0.0),
        (Lane::Real(a), Lane::Complex(d)) => map(&a[..n], d, Complex64::from),
        (Lane::Complex(a), Lane::Bool(d)) => map(&a[..n], d, |v| v != Complex64::default()),
        (Lane::Bool(a), Lane::Bool(d)) => map(&a[..n], d, |v| v),
        (Lane::Int(a), Lane::Int(d)) => map(&a[..n], d, |v| v),
        (Lane::Real(a), Lane::Real(d)) => map(&a[..n], d, |v| v),
        (Lane::Complex(a), Lane::Complex(d)) => map(&a[..n], d, |v| v),
        _ => unreachable!("dtypes are only promoted"),
    }
}

/// Rounds reals and complex numbers to their dtype.
pub fn round(lane: &mut Lane, dtype: DType, n: usize) {
    match (lane, dtype) {
        (Lane::Real(d), DType::F32) => d[..n].iter_mut().for_each(|v| *v = f64::from(*v as f32)),
        (Lane::Real(d), DType::F16) => d[..n].iter_mut().for_each(|v| *v = f16_from_f64(*v).to_f64_const()),
        (Lane::Complex(d), DType::C64) => {
            d[..n].iter_mut().for_each(|v| *v = Complex64::new(f64::from(v.re as f32), f64::from(v.im as f32)));
        }
        _ => {}
    }
}

/// `out = function(args)` for the first `n` values; arguments are of one kind (but for the condition of `where`), `out` is
/// of the result's, whose dtype is `dtype`.
pub fn apply(function: Function, dtype: DType, args: &[&Lane], n: usize, out: &mut Lane) -> Result<(), Fault> {
    use Function::*;
    match (args, &mut *out) {
        ([Lane::Bool(c), Lane::Bool(a), Lane::Bool(b)], Lane::Bool(d)) => choose(c, a, b, &mut d[..n]),
        ([Lane::Bool(c), Lane::Int(a), Lane::Int(b)], Lane::Int(d)) => choose(c, a, b, &mut d[..n]),
        ([Lane::Bool(c), Lane::Real(a), Lane::Real(b)], Lane::Real(d)) => choose(c, a, b, &mut d[..n]),
        ([Lane::Bool(c), Lane::Complex(a), Lane::Complex(b)], Lane::Complex(d)) => choose(c, a, b, &mut d[..n]),
        ([Lane::Bool(a), Lane::Bool(b)], Lane::Bool(d)) => {
            let d = &mut d[..n];
            match function {
                And | Minimum => zip(a, b, d, |a, b| a & b),
                Or | Maximum => zip(a, b, d, |a, b| a | b),
                Xor | NotEqual => zip(a, b, d, |a, b| a ^ b),
                Less => zip(a, b, d, |a, b| !a & b),
                LessEqual => zip(a, b, d, |a, b| a <= b),
                Greater => zip(a, b, d, |a, b| a & !b),
                GreaterEqual => zip(a, b, d, |a, b| a >= b),
                _ => zip(a, b, d, |a, b| a == b),
            }
        }
        ([Lane::Int(a), Lane::Int(b)], Lane::Bool(d)) => compare(function, a, b, &mut d[..n]),
        ([Lane::Real(a), Lane::Real(b)], Lane::Bool(d)) => compare(function, a, b, &mut d[..n]),
        ([Lane::Complex(a), Lane::Complex(b)], Lane::Bool(d)) => match function {
            Equal => zip(a, b, &mut d[..n], |a, b| a == b),
            _ => zip(a, b, &mut d[..n], |a, b| a != b),
        },
        ([Lane::Int(a), Lane::Int(b)], Lane::Int(d)) => return integers(function, dtype, a, b, &mut d[..n]),
        ([Lane::Int(a)], Lane::Int(d)) => return integer(function, dtype, a, &mut d[..n]),
        ([Lane::Real(a), Lane::Real(b)], Lane::Real(d)) => reals(function, a, b, &mut d[..n]),
        ([Lane::Real(a)], Lane::Real(d)) => real(function, a, &mut d[..n]),
        ([Lane::Complex(a), Lane::Complex(b)], Lane::Complex(d)) => {
            let d = &mut d[..n];
            match function {
                Add => zip(a, b, d, |a, b| a + b),
                Subtract => zip(a, b, d, |a, b| a - b),
                Multiply => zip(a, b, d, |a, b| a * b),
                Divide => zip(a, b, d, |a, b| a / b),
                _ => zip(a, b, d, complex_power),
            }
        }
        ([Lane::Complex(a)], Lane::Complex(d)) => {
            let d = &mut d[..n];
            match function {
                Negative => map(a, d, |v| -v),
                Conj => map(a, d, |v| v.conj()),
                Exp => map(a, d, complex_exp),
                _ => map(a, d, |v| v),
            }
        }
        ([Lane::Complex(a)], Lane::Real(d)) => {
            let d = &mut d[..n];
            match function {
                Abs => map(a, d, |v| (v.re * v.re + v.im * v.im).sqrt()),
                Real => map(a, d, |v| v.re),
                Imag => map(a, d, |v| v.im),
                _ => map(a, d, |v| libm::atan2(v.im, v.re)),
            }
        }
        ([Lane::Bool(a)], Lane::Bool(d)) => {
            let d = &mut d[..n];
            match function {
                Invert => map(a, d, |v| !v),
                Imag | IsNan | IsInf => d.fill(false),
                IsFinite => d.fill(true),
                _ => map(a, d, |v| v),
            }
        }
        ([Lane::Int(_)], Lane::Bool(d)) => d[..n].fill(function == IsFinite),
        ([Lane::Real(a)], Lane::Bool(d)) => match function {
            IsNan => map(a, &mut d[..n], f64::is_nan),
            IsInf => map(a, &mut d[..n], f64::is_infinite),
            _ => map(a, &mut d[..n], f64::is_finite),
        },
        ([Lane::Complex(a)], Lane::Bool(d)) => match function {
            IsNan => map(a, &mut d[..n], |v| v.re.is_nan() || v.im.is_nan()),
            IsInf => map(a, &mut d[..n], |v| v.re.is_infinite() || v.im.is_infinite()),
            _ => map(a, &mut d[..n], |v| v.re.is_finite() && v.im.is_finite()),
        },
        _ => unreachable!("the compiler gives every function lanes of the kinds that its dtypes say"),
    }
    round(out, dtype, n);
    Ok(())
}

fn choose<T: Copy>(c: &[bool], a: &[T], b: &[T], out: &mut [T]) {
    for (i, d) in out.iter_mut().enumerate() {
        *d = if c[i] { a[i] } else { b[i] };
    }
}

fn compare<T: Copy + PartialOrd>(function: Function, a: &[T], b: &[T], out: &mut [bool]) {
    match function {
        Function::Less => zip(a, b, out, |a, b| a < b),
        Function::LessEqual => zip(a, b, out, |a, b| a <= b),
        Function::Greater => zip(a, b, out, |a, b| a > b),
        Function::GreaterEqual => zip(a, b, out, |a, b| a >= b),
        Function::Equal => zip(a, b, out, |a, b| a == b),
        _ => zip(a, b, out, |a, b| a != b),
    }
}

/// Integers that the dtype holds, or which element has none.
fn checked(
    function: Function,
    dtype: DType,
    out: &mut [i64],
    show: impl Fn(usize) -> String,
    f: impl Fn(usize) -> Option<i64>,
) -> Result<(), Fault> {
    let (low, high) = dtype.integer_range().unwrap_or((i128::from(i64::MIN), i128::from(i64::MAX)));
    // Results beyond int64 have failed already.
    let (low, high) = (low.max(i64::MIN.into()) as i64, high.min(i64::MAX.into()) as i64);
    for (at, d) in out.iter_mut().enumerate() {
        match f(at) {
            Some(v) if v >= low && v <= high => *d = v,
            found => {
                let what = show(at);
                let why = match (found, function) {
                    (Some(v), _) => format!("{what} is {v}, which {dtype} cannot hold; cast the input to a wider dtype first"),
                    (None, Function::FloorDivide | Function::Remainder) => format!("{what} divides an integer by zero"),
                    (None, Function::Power) => {
                        format!("{what} has no 64-bit integer result; cast the input to float64 first")
                    }
                    (None, _) => format!("{what} does not fit 64 bits; cast the input to float64 first"),
                };
                return Err(Fault { at, why });
            }
        }
    }
    Ok(())
}

fn integers(function: Function, dtype: DType, a: &[i64], b: &[i64], out: &mut [i64]) -> Result<(), Fault> {
    use Function::*;
    match function {
        And => zip(a, b, out, |a, b| a & b),
        Or => zip(a, b, out, |a, b| a | b),
        Xor => zip(a, b, out, |a, b| a ^ b),
        Minimum => zip(a, b, out, i64::min),
        Maximum => zip(a, b, out, i64::max),
        _ => {
            let f = |at: usize| {
                let (a, b) = (a[at], b[at]);
                match function {
                    Add => a.checked_add(b),
                    Subtract => a.checked_sub(b),
                    Multiply => a.checked_mul(b),
                    // Toward minus infinity; the remainder has the divisor's sign.
                    FloorDivide => a.checked_div(b).map(|q| if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q }),
                    Remainder if b == -1 => Some(0),
                    Remainder => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
                    _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
                }
            };
            return checked(function, dtype, out, |at| format!("{} {} {}", a[at], function.name(), b[at]), f);
        }
    }
    Ok(())
}

fn integer(function: Function, dtype: DType, a: &[i64], out: &mut [i64]) -> Result<(), Fault> {
    use Function::*;
    match function {
        Sign => map(a, out, i64::signum),
        Imag => out.fill(0),
        // In an unsigned dtype the bits above its own stay zero.
        Invert => match dtype.integer_range() {
            Some((0, high)) => {
                let mask = high.min(i64::MAX.into()) as i64;
                map(a, out, |v| !v & mask);
            }
            _ => map(a, out, |v| !v),
        },
        Negative => return checked(function, dtype, out, |at| format!("-({})", a[at]), |at| a[at].checked_neg()),
        Abs => return checked(function, dtype, out, |at| format!("abs({})", a[at]), |at| a[at].checked_abs()),
        _ => map(a, out, |v| v),
    }
    Ok(())
}

fn reals(function: Function, a: &[f64], b: &[f64], out: &mut [f64]) {
    use Function::*;
    match function {
        Add => zip(a, b, out, |a, b| a + b),
        Subtract => zip(a, b, out, |a, b| a - b),
        Multiply => zip(a, b, out, |a, b| a * b),
        Divide => zip(a, b, out, |a, b| a / b),
        FloorDivide => zip(a, b, out, floor_divide),
        Remainder => zip(a, b, out, remainder),
        // NaN wins.
        Minimum => zip(a, b, out, |a, b| if a.is_nan() || a <= b { a } else { b }),
        Maximum => zip(a, b, out, |a, b| if a.is_nan() || a >= b { a } else { b }),
        Arctan2 => zip(a, b, out, libm::atan2),
        Hypot => zip(a, b, out, libm::hypot),
        _ => zip(a, b, out, power),
    }
}

fn real(function: Function, a: &[f64], out: &mut [f64]) {
    use Function::*;
    match function {
        Negative => map(a, out, |v| -v),
        Abs => map(a, out, f64::abs),
        Sign => map(a, out, |v| {
            if v > 0.0 {
                1.0
            } else if v < 0.0 {
                -1.0
            } else if v == 0.0 {
                0.0
            } else {
                v
            }
        }),
        Floor => map(a, out, f64::floor),
        Ceil => map(a, out, f64::ceil),
        Trunc => map(a, out, f64::trunc),
        Round => map(a, out, f64::round_ties_even),
        Imag => out.fill(0.0),
        Angle => map(a, out, |v| libm::atan2(0.0, v)),
        Sqrt => map(a, out, f64::sqrt),
        Exp => map(a, out, libm::exp),
        Expm1 => map(a, out, libm::expm1),
        Log => map(a, out, libm::log),
        Log2 => map(a, out, libm::log2),
        Log10 => map(a, out, libm::log10),
        Log1p => map(a, out, libm::log1p),
        Sin => map(a, out, libm::sin),
        Cos => map(a, out, libm::cos),
        Tan => map(a, out, libm::tan),
        Arcsin => map(a, out, libm::asin),
        Arccos => map(a, out, libm::acos),
        Arctan => map(a, out, libm::atan),
        Sinh => map(a, out, libm::sinh),
        Cosh => map(a, out, libm::cosh),
        Tanh => map(a, out, libm::tanh),
        _ => map(a, out, |v| v),
    }
}

/// numpy's remainder: the divisor's sign.
fn remainder(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r == 0.0 {
        0f64.copysign(b)
    } else if (r < 0.0) != (b < 0.0) {
        r + b
    } else {
        r
    }
}

/// numpy's floor division, consistent with its remainder.
fn floor_divide(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let mut r = a % b;
    let mut quotient = (a - r) / b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) {
        r += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 || r.is_nan() {
        return if r.is_nan() { r } else { 0f64.copysign(a / b) };
    }
    let whole = quotient.floor();
    if quotient - whole > 0.5 { whole + 1.0 } else { whole }
}

/// Squares and roots exactly rounded, as numpy does for these exponents.
fn power(a: f64, b: f64) -> f64 {
    if b == 2.0 {
        a * a
    } else if b == 0.5 && a >= 0.0 {
        a.sqrt()
    } else {
        libm::pow(a, b)
    }
}

fn complex_exp(z: Complex64) -> Complex64 {
    let size = libm::exp(z.re);
    // A real number stays one, infinities too.
    if z.im == 0.0 { Complex64::new(size, z.im) } else { Complex64::new(size * libm::cos(z.im), size * libm::sin(z.im)) }
}

/// Whole exponents by repeated squaring, others by logarithm.
fn complex_power(a: Complex64, b: Complex64) -> Complex64 {
    if b.im == 0.0 && b.re.fract() == 0.0 && b.re.abs() <= 1024.0 {
        let (mut rest, mut square, mut product) = (b.re.abs() as u32, a, Complex64::new(1.0, 0.0));
        while rest > 0 {
            if rest & 1 == 1 {
                product *= square;
            }
            square *= square;
            rest >>= 1;
        }
        return if b.re < 0.0 { Complex64::new(1.0, 0.0) / product } else { product };
    }
    if a == Complex64::default() {
        return if b.re > 0.0 { a } else { Complex64::new(f64::NAN, f64::NAN) };
    }
    let log = Complex64::new(libm::log(libm::hypot(a.re, a.im)), libm::atan2(a.im, a.re));
    complex_exp(b * log)
}
