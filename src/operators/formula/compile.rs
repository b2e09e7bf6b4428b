//! From a formula to a short program: every value gets a lane, every function becomes one step over whole lanes.
//!
//! Dtypes are numpy's (NEP 50): arrays promote among each other; a number, and what is computed of numbers alone, takes the
//! dtype of what it meets, but a float never becomes an integer.

use num_complex::Complex64;

use super::function::{Function, promote};
use super::lane::{Kind, Lane, apply, convert, round};
use super::syntax::Node;
use crate::array::DType;
use crate::operators::reduce::Number;

/// A step of the program: lanes by number.
pub enum Step {
    /// `to = from` in another kind.
    Convert {
        from: usize,
        to: usize,
    },
    Apply {
        function: Function,
        dtype: DType,
        args: Vec<usize>,
        to: usize,
    },
}

/// A compiled formula.
pub struct Program {
    /// Kinds of the lanes: those of the inputs first.
    pub lanes: Vec<Kind>,
    /// Lanes that never change.
    pub constants: Vec<(usize, Lane)>,
    pub steps: Vec<Step>,
    pub result: usize,
    pub dtype: DType,
}

/// A number in a formula, before it meets an array.
#[derive(Clone, Copy, Debug)]
enum Weak {
    Int(i64),
    Real(f64),
    Complex(Complex64),
}

#[derive(Clone, Copy, Debug)]
enum Value {
    Weak(Weak),
    Lane { lane: usize, dtype: DType },
}

impl Weak {
    /// The dtype it takes when nothing else says.
    fn default_dtype(self) -> DType {
        match self {
            Weak::Int(_) => DType::I64,
            Weak::Real(_) => DType::F64,
            Weak::Complex(_) => DType::C128,
        }
    }

    /// The common dtype with arrays of dtype `d`.
    fn meets(self, d: DType) -> DType {
        match (self, Kind::of(d)) {
            (Weak::Int(_), Kind::Bool) => DType::I64,
            (Weak::Real(_), Kind::Bool | Kind::Int) => DType::F64,
            (Weak::Complex(_), Kind::Real) => match d {
                DType::F64 => DType::C128,
                _ => DType::C64,
            },
            (Weak::Complex(_), Kind::Bool | Kind::Int) => DType::C128,
            _ => d,
        }
    }

    fn lane(self, kind: Kind) -> Lane {
        let n = super::lane::LANE;
        let complex = match self {
            Weak::Int(v) => Complex64::from(v as f64),
            Weak::Real(v) => v.into(),
            Weak::Complex(v) => v,
        };
        match (kind, self) {
            (Kind::Bool, _) => Lane::Bool(vec![complex != Complex64::default(); n]),
            (Kind::Int, Weak::Int(v)) => Lane::Int(vec![v; n]),
            (Kind::Int, _) => Lane::Int(vec![complex.re as i64; n]),
            (Kind::Real, _) => Lane::Real(vec![complex.re; n]),
            (Kind::Complex, _) => Lane::Complex(vec![complex; n]),
        }
    }
}

/// Compiles a formula over inputs of these dtypes; a message says what does not fit.
pub fn compile(node: &Node, inputs: &[DType]) -> Result<Program, String> {
    let program = Program {
        lanes: inputs.iter().map(|d| Kind::of(*d)).collect(),
        constants: Vec::new(),
        steps: Vec::new(),
        result: 0,
        dtype: DType::F64,
    };
    let mut compiler = Compiler { program, inputs, free: Vec::new() };
    let value = compiler.value(node)?;
    let (lane, dtype) = match value {
        Value::Lane { lane, dtype } => (lane, dtype),
        Value::Weak(_) => return Err("depends on no input".to_owned()),
    };
    compiler.program.result = lane;
    compiler.program.dtype = dtype;
    Ok(compiler.program)
}

struct Compiler<'a> {
    program: Program,
    inputs: &'a [DType],
    /// Lanes whose value nobody needs any more.
    free: Vec<usize>,
}

impl Compiler<'_> {
    fn value(&mut self, node: &Node) -> Result<Value, String> {
        match node {
            Node::Number(Number::Integer(v)) => Ok(Value::Weak(Weak::Int(*v))),
            Node::Number(Number::Float(v)) => Ok(Value::Weak(Weak::Real(*v))),
            Node::Imaginary(v) => Ok(Value::Weak(Weak::Complex(Complex64::new(0.0, *v)))),
            Node::Input(i) => Ok(Value::Lane { lane: *i, dtype: self.inputs[*i] }),
            Node::Name(name) => Err(format!("names `{name}`, which is no input")),
            Node::Call(function, arguments) => {
                let values = arguments.iter().map(|a| self.value(a)).collect::<Result<Vec<_>, _>>()?;
                self.call(*function, &values)
            }
        }
    }

    fn call(&mut self, function: Function, values: &[Value]) -> Result<Value, String> {
        // The condition of `where` is no part of the common dtype.
        let (condition, meeting) = match function {
            Function::Where => values.split_at(1),
            _ => values.split_at(0),
        };
        let strong = values.iter().any(|v| matches!(v, Value::Lane { .. }));
        if !strong {
            return self.fold(function, values);
        }
        let arrays = meeting.iter().filter_map(|v| match v {
            Value::Lane { dtype, .. } => Some(*dtype),
            Value::Weak(_) => None,
        });
        let numbers = || {
            meeting.iter().filter_map(|v| match v {
                Value::Weak(weak) => Some(*weak),
                Value::Lane { .. } => None,
            })
        };
        let mut common = match arrays.reduce(promote) {
            Some(dtype) => dtype,
            // `where(x > 0, 1, 0)`: numbers only.
            None => numbers().map(Weak::default_dtype).reduce(promote).unwrap_or(DType::F64),
        };
        for weak in numbers() {
            common = weak.meets(common);
        }
        let (meet, result) = function.dtypes(common)?;
        let mut args = Vec::with_capacity(values.len());
        for value in condition {
            args.push(self.lane(*value, DType::Bool, true)?);
        }
        for value in meeting {
            args.push(self.lane(*value, meet, function.compares())?);
        }
        // Taken before the arguments are given back: a step never writes what it reads.
        let to = self.take(Kind::of(result));
        self.program.steps.push(Step::Apply { function, dtype: result, args: args.clone(), to });
        args.into_iter().for_each(|lane| self.give(lane));
        Ok(Value::Lane { lane: to, dtype: result })
    }

    /// A function of numbers alone, computed once.
    fn fold(&self, function: Function, values: &[Value]) -> Result<Value, String> {
        let weak: Vec<Weak> = values.iter().filter_map(|v| if let Value::Weak(w) = v { Some(*w) } else { None }).collect();
        let meeting = if function == Function::Where { &weak[1..] } else { &weak[..] };
        let common = meeting.iter().map(|w| w.default_dtype()).reduce(promote).unwrap_or(DType::F64);
        let (meet, result) = function.dtypes(common)?;
        let skip = weak.len() - meeting.len();
        let lanes: Vec<Lane> =
            weak.iter().enumerate().map(|(i, w)| w.lane(if i < skip { Kind::Bool } else { Kind::of(meet) })).collect();
        let mut out = Lane::new(Kind::of(result));
        apply(function, result, &lanes.iter().collect::<Vec<_>>(), 1, &mut out).map_err(|fault| fault.why)?;
        Ok(Value::Weak(match out {
            Lane::Bool(v) => Weak::Int(v[0].into()),
            Lane::Int(v) => Weak::Int(v[0]),
            Lane::Real(v) => Weak::Real(v[0]),
            Lane::Complex(v) => Weak::Complex(v[0]),
        }))
    }

    /// A lane that holds a value as `dtype`.
    fn lane(&mut self, value: Value, dtype: DType, may_leave_range: bool) -> Result<usize, String> {
        let kind = Kind::of(dtype);
        match value {
            Value::Lane { lane, dtype: own } if Kind::of(own) == kind => Ok(lane),
            Value::Lane { lane, .. } => {
                let to = self.take(kind);
                self.program.steps.push(Step::Convert { from: lane, to });
                self.give(lane);
                Ok(to)
            }
            Value::Weak(weak) => {
                if let (Weak::Int(v), Some((low, high)), false) = (weak, dtype.integer_range(), may_leave_range)
                    && !(low..=high).contains(&i128::from(v))
                {
                    return Err(format!("holds {v}, which the {dtype} that it meets cannot hold; cast the input first"));
                }
                let lane = self.program.lanes.len();
                self.program.lanes.push(kind);
                let mut values = weak.lane(kind);
                round(&mut values, dtype, super::lane::LANE);
                self.program.constants.push((lane, values));
                Ok(lane)
            }
        }
    }

    fn take(&mut self, kind: Kind) -> usize {
        match self.free.iter().position(|&lane| self.program.lanes[lane] == kind) {
            Some(at) => self.free.swap_remove(at),
            None => {
                self.program.lanes.push(kind);
                self.program.lanes.len() - 1
            }
        }
    }

    /// Inputs are loaded and constants are made once per slice: only what a step made is free again.
    fn give(&mut self, lane: usize) {
        let is_constant = self.program.constants.iter().any(|(constant, _)| *constant == lane);
        if lane >= self.inputs.len() && !is_constant && !self.free.contains(&lane) {
            self.free.push(lane);
        }
    }
}

impl Program {
    /// Lanes to run in, constants in place.
    pub fn lanes(&self) -> Vec<Lane> {
        let mut lanes: Vec<Lane> = self.lanes.iter().map(|kind| Lane::new(*kind)).collect();
        for (at, values) in &self.constants {
            lanes[*at] = values.clone();
        }
        lanes
    }

    /// Runs over the first `n` values of the inputs' lanes.
    pub fn run(&self, lanes: &mut [Lane], n: usize) -> Result<(), super::lane::Fault> {
        for step in &self.steps {
            let to = match step {
                Step::Convert { to, .. } | Step::Apply { to, .. } => *to,
            };
            let mut out = std::mem::replace(&mut lanes[to], Lane::Bool(Vec::new()));
            let done = match step {
                Step::Convert { from, .. } => {
                    convert(&lanes[*from], &mut out, n);
                    Ok(())
                }
                Step::Apply { function, dtype, args, .. } => match args[..] {
                    [a] => apply(*function, *dtype, &[&lanes[a]], n, &mut out),
                    [a, b] => apply(*function, *dtype, &[&lanes[a], &lanes[b]], n, &mut out),
                    [a, b, c] => apply(*function, *dtype, &[&lanes[a], &lanes[b], &lanes[c]], n, &mut out),
                    _ => unreachable!("functions take one to three arguments"),
                },
            };
            lanes[to] = out;
            done?;
        }
        Ok(())
    }
}
