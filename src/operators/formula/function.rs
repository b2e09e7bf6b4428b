//! What a formula can call: names, numbers of arguments, and the dtype of the result.

use crate::array::DType;
use crate::config::table::nearest;

/// An operator or a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    Negative,
    Positive,
    Invert,
    And,
    Or,
    Xor,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    Where,
    Minimum,
    Maximum,
    Arctan2,
    Hypot,
    Abs,
    Sign,
    Floor,
    Ceil,
    Trunc,
    Round,
    IsNan,
    IsInf,
    IsFinite,
    Real,
    Imag,
    Conj,
    Angle,
    Sqrt,
    Exp,
    Expm1,
    Log,
    Log2,
    Log10,
    Log1p,
    Sin,
    Cos,
    Tan,
    Arcsin,
    Arccos,
    Arctan,
    Sinh,
    Cosh,
    Tanh,
}

use Function::*;

/// Functions by numpy's names.
const NAMED: &[(&str, Function)] = &[
    ("where", Where),
    ("minimum", Minimum),
    ("maximum", Maximum),
    ("arctan2", Arctan2),
    ("hypot", Hypot),
    ("abs", Abs),
    ("sign", Sign),
    ("floor", Floor),
    ("ceil", Ceil),
    ("trunc", Trunc),
    ("round", Round),
    ("isnan", IsNan),
    ("isinf", IsInf),
    ("isfinite", IsFinite),
    ("real", Real),
    ("imag", Imag),
    ("conj", Conj),
    ("angle", Angle),
    ("sqrt", Sqrt),
    ("exp", Exp),
    ("expm1", Expm1),
    ("log", Log),
    ("log2", Log2),
    ("log10", Log10),
    ("log1p", Log1p),
    ("sin", Sin),
    ("cos", Cos),
    ("tan", Tan),
    ("arcsin", Arcsin),
    ("arccos", Arccos),
    ("arctan", Arctan),
    ("sinh", Sinh),
    ("cosh", Cosh),
    ("tanh", Tanh),
];

impl Function {
    pub fn find(name: &str) -> Option<Self> {
        NAMED.iter().find(|(n, _)| *n == name).map(|(_, f)| *f)
    }

    /// The nearest function, or all of them.
    pub fn hint(name: &str) -> String {
        match nearest(name, NAMED.iter().map(|(n, _)| *n)) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => format!(" (there are {})", NAMED.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ")),
        }
    }

    /// As a message names it.
    pub fn name(self) -> &'static str {
        let sign = match self {
            Add => "+",
            Subtract => "-",
            Multiply => "*",
            Divide => "/",
            FloorDivide => "//",
            Remainder => "%",
            Power => "**",
            Negative => "-",
            Positive => "+",
            Invert => "~",
            And => "&",
            Or => "|",
            Xor => "^",
            Less => "<",
            LessEqual => "<=",
            Greater => ">",
            GreaterEqual => ">=",
            Equal => "==",
            NotEqual => "!=",
            _ => "",
        };
        NAMED.iter().find(|(_, f)| *f == self).map_or(sign, |(n, _)| n)
    }

    pub fn arguments(self) -> usize {
        match self {
            Where => 3,
            Negative | Positive | Invert => 1,
            Minimum | Maximum | Arctan2 | Hypot => 2,
            named if NAMED.iter().any(|(_, f)| *f == named) => 1,
            _ => 2,
        }
    }

    pub fn compares(self) -> bool {
        matches!(self, Less | LessEqual | Greater | GreaterEqual | Equal | NotEqual)
    }

    /// The dtype in which the arguments meet and that of the result, from the arguments' common dtype.
    pub fn dtypes(self, common: DType) -> Result<(DType, DType), String> {
        let refuse = |why: &str| Err(format!("`{}` of {common}: {why}", self.name()));
        let is_complex = common.is_complex();
        let part = match common {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            real => real,
        };
        let float = if common.is_float() || is_complex { common } else { DType::F64 };
        match self {
            Equal | NotEqual => Ok((common, DType::Bool)),
            Less | LessEqual | Greater | GreaterEqual | Minimum | Maximum if is_complex => {
                refuse("complex numbers have no order; compare their amplitudes")
            }
            Less | LessEqual | Greater | GreaterEqual => Ok((common, DType::Bool)),
            Minimum | Maximum | Where => Ok((common, common)),
            Invert if common == DType::U64 => refuse("its upper half is beyond int64, in which integers are computed"),
            And | Or | Xor | Invert if common == DType::Bool || common.is_integer() => Ok((common, common)),
            And | Or | Xor | Invert => refuse("bits are those of integers and bools; compare first, such as (x > 0) & (y > 0)"),
            Add | Subtract | Multiply | FloorDivide | Remainder | Power | Negative | Positive | Sign if common == DType::Bool => {
                refuse("not defined; use & | ^ ~, or where(x, 1, 0)")
            }
            FloorDivide | Remainder | Sign | Floor | Ceil | Trunc | Round if is_complex => {
                refuse("not defined for complex numbers")
            }
            Add | Subtract | Multiply | FloorDivide | Remainder | Power | Negative | Positive | Sign => Ok((common, common)),
            Floor | Ceil | Trunc | Round | Conj => Ok((common, common)),
            Abs | Real | Imag => Ok((common, part)),
            IsNan | IsInf | IsFinite => Ok((common, DType::Bool)),
            Divide | Exp => Ok((float, float)),
            Angle => Ok((float, if is_complex { part } else { float })),
            _ if is_complex => refuse("complex numbers are not supported; take abs, angle, real or imag"),
            _ => Ok((float, float)),
        }
    }
}

/// numpy's common dtype of two arrays.
pub fn promote(a: DType, b: DType) -> DType {
    use DType::*;
    if a == b || b == Bool {
        return a;
    }
    if a == Bool {
        return b;
    }
    if let (Some((low_a, high_a)), Some((low_b, high_b))) = (a.integer_range(), b.integer_range()) {
        let (low, high) = (low_a.min(low_b), high_a.max(high_b));
        let holds = |d: &DType| d.integer_range().is_some_and(|(l, h)| l <= low && high <= h);
        return [a, b, I16, I32, I64].into_iter().find(holds).unwrap_or(F64);
    }
    // Bits of a float that holds all values, as numpy counts them.
    let bits = |d: DType| match d {
        U8 | I8 | F16 => 16,
        U16 | I16 | F32 | C64 => 32,
        _ => 64,
    };
    match (a.is_complex() || b.is_complex(), bits(a).max(bits(b))) {
        (true, 64) => C128,
        (true, _) => C64,
        (false, 16) => F16,
        (false, 32) => F32,
        (false, _) => F64,
    }
}
