//! The grammar of formulas: Python's, as far as it is about numbers.
//!
//! Loosest first: comparisons (of two things, not chained), `|`, `^`, `&`, `+ -`, `* / // %`, unary `- + ~`, `**` (to the
//! right). Operands: numbers (`2`, `0.5`, `1e-3`; `2j` is imaginary), names, calls, parentheses.
//!
//! The parser is winnow's, which the TOML reader brings along already; its Pratt combinator keeps the table of operators in
//! one place. Length and nesting are bounded before it runs, since it recurses.

use std::cell::{Cell, RefCell};

use winnow::ascii::{digit1, multispace0};
use winnow::combinator::{Infix, Prefix, alt, delimited, dispatch, expression, fail, opt, peek, preceded, separated, terminated};
use winnow::error::ContextError;
use winnow::prelude::*;
use winnow::stream::Stateful;
use winnow::token::{any, one_of, take_while};

use super::function::Function;
use crate::operators::reduce::Number;

/// A formula as written.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Number(Number),
    /// A multiple of the imaginary unit.
    Imaginary(f64),
    Name(String),
    /// Which input of the step: what names become.
    Input(usize),
    Call(Function, Vec<Node>),
}

impl Node {
    pub fn call<const N: usize>(function: Function, arguments: [Node; N]) -> Self {
        Node::Call(function, arguments.into())
    }
}

const LONGEST: usize = 4096;
const DEEPEST: usize = 64;

/// Reads a formula; the message says where it cannot be read.
pub fn parse(text: &str) -> Result<Node, String> {
    if text.len() > LONGEST {
        return Err(format!("is {} bytes long, more than {LONGEST}; split it into several steps", text.len()));
    }
    if nesting(text) > DEEPEST {
        return Err(format!("is nested deeper than {DEEPEST}; split it into several steps"));
    }
    let seen = Seen { left: Cell::new(text.len()), problem: RefCell::new(None) };
    let mut input = Stateful { input: text, state: &seen };
    let done = formula.parse_next(&mut input);
    if let Some(problem) = seen.problem.take() {
        return Err(problem);
    }
    let left = match done {
        Ok(node) if input.input.is_empty() => return Ok(node),
        Ok(_) => input.input.len(),
        // Where it came furthest is where it went wrong.
        Err(_) => seen.left.get(),
    };
    Err(match text[text.len() - left..].trim() {
        "" => format!("ends too early: {text:?}"),
        rest => format!("cannot be read from {rest:?} on"),
    })
}

/// How deep the parser would recurse: open parentheses, signs in a row, powers and comparisons.
fn nesting(text: &str) -> usize {
    let (mut open, mut signs, mut deepest) = (0usize, 0usize, 0usize);
    for c in text.chars() {
        match c {
            '(' => open += 1,
            ')' => open = open.saturating_sub(1),
            '-' | '+' | '~' => signs += 1,
            c if c.is_whitespace() => {}
            _ => signs = 0,
        }
        deepest = deepest.max(open + signs);
    }
    deepest.max(text.matches("**").count())
}

/// What the parser noticed on its way.
#[derive(Debug)]
struct Seen {
    /// Bytes left where the parser came furthest.
    left: Cell<usize>,
    problem: RefCell<Option<String>>,
}

impl Seen {
    fn reached(&self, rest: &str) {
        self.left.set(self.left.get().min(rest.len()));
    }
}

type Input<'i> = Stateful<&'i str, &'i Seen>;
type Parsed<T> = winnow::Result<T, ContextError>;

fn operand(input: &mut Input<'_>) -> Parsed<Node> {
    multispace0.parse_next(input)?;
    input.state.reached(input.input);
    let node = terminated(alt((number, call_or_name, parentheses)), multispace0).parse_next(input)?;
    input.state.reached(input.input);
    Ok(node)
}

fn parentheses(input: &mut Input<'_>) -> Parsed<Node> {
    delimited('(', formula, (multispace0, ')')).parse_next(input)
}

fn number(input: &mut Input<'_>) -> Parsed<Node> {
    let start = input.input;
    let exponent = |i: &mut Input<'_>| (one_of(['e', 'E']), opt(one_of(['+', '-'])), digit1).void().parse_next(i);
    let fraction = |i: &mut Input<'_>| ('.', opt(digit1)).void().parse_next(i);
    let is_float = alt((
        (digit1, opt(fraction), opt(exponent)).map(|(_, f, e)| f.is_some() || e.is_some()),
        ('.', digit1, opt(exponent)).map(|_| true),
    ))
    .parse_next(input)?;
    let text = &start[..start.len() - input.input.len()];
    if opt('j').parse_next(input)?.is_some() {
        return text.parse().map(Node::Imaginary).map_err(|_| ContextError::new());
    }
    if !is_float {
        match text.parse() {
            Ok(v) => return Ok(Node::Number(Number::Integer(v))),
            Err(_) => {
                input
                    .state
                    .problem
                    .replace(Some(format!("holds the integer {text}, which does not fit 64 bits; write it as a float")));
                return fail.parse_next(input);
            }
        }
    }
    text.parse().map(|v| Node::Number(Number::Float(v))).map_err(|_| ContextError::new())
}

fn call_or_name(input: &mut Input<'_>) -> Parsed<Node> {
    let first = |c: char| c.is_alphabetic() || c == '_';
    let name = (one_of(first), take_while(0.., |c: char| c.is_alphanumeric() || c == '_' || c == '.')).take();
    let name: &str = terminated(name, multispace0).parse_next(input)?;
    let name = name.to_owned();
    if opt(peek('(')).parse_next(input)?.is_none() {
        return Ok(match name.as_str() {
            "pi" => Node::Number(Number::Float(std::f64::consts::PI)),
            "e" => Node::Number(Number::Float(std::f64::consts::E)),
            "nan" => Node::Number(Number::Float(f64::NAN)),
            "inf" => Node::Number(Number::Float(f64::INFINITY)),
            _ => Node::Name(name),
        });
    }
    let arguments: Vec<Node> = delimited('(', separated(1.., formula, ','), (multispace0, ')')).parse_next(input)?;
    let problem = match Function::find(&name) {
        None => format!("calls `{name}`, which is no function here{}", Function::hint(&name)),
        Some(function) if function.arguments() != arguments.len() => {
            format!("calls `{name}` with {} arguments, it takes {}", arguments.len(), function.arguments())
        }
        Some(function) => return Ok(Node::Call(function, arguments)),
    };
    input.state.problem.replace(Some(problem));
    fail.parse_next(input)
}

fn formula(input: &mut Input<'_>) -> Parsed<Node> {
    use Function::*;
    macro_rules! infix {
        ($kind:ident, $power:literal, $f:expr) => {
            Infix::$kind($power, |_: &mut Input<'_>, a, b| Ok(Node::call($f, [a, b])))
        };
    }
    macro_rules! prefix {
        ($f:expr) => {
            Prefix(15, |_: &mut Input<'_>, a| Ok(Node::call($f, [a])))
        };
    }
    macro_rules! after {
        ($next:literal, $then:expr, $else:expr) => {
            opt($next).map(|next| if next.is_some() { $then } else { $else })
        };
    }
    let node = preceded(
        multispace0,
        expression(operand)
            .prefix(preceded(
                multispace0,
                dispatch! {any;
                    '-' => winnow::combinator::empty.value(prefix!(Negative)),
                    '+' => winnow::combinator::empty.value(prefix!(Positive)),
                    '~' => winnow::combinator::empty.value(prefix!(Invert)),
                    _ => fail,
                },
            ))
            .infix(dispatch! {any;
                '*' => after!('*', infix!(Right, 17, Power), infix!(Left, 13, Multiply)),
                '/' => after!('/', infix!(Left, 13, FloorDivide), infix!(Left, 13, Divide)),
                '%' => winnow::combinator::empty.value(infix!(Left, 13, Remainder)),
                '+' => winnow::combinator::empty.value(infix!(Left, 11, Add)),
                '-' => winnow::combinator::empty.value(infix!(Left, 11, Subtract)),
                '&' => winnow::combinator::empty.value(infix!(Left, 9, And)),
                '^' => winnow::combinator::empty.value(infix!(Left, 7, Xor)),
                '|' => winnow::combinator::empty.value(infix!(Left, 5, Or)),
                '<' => after!('=', infix!(Neither, 3, LessEqual), infix!(Neither, 3, Less)),
                '>' => after!('=', infix!(Neither, 3, GreaterEqual), infix!(Neither, 3, Greater)),
                '=' => '='.value(infix!(Neither, 3, Equal)),
                '!' => '='.value(infix!(Neither, 3, NotEqual)),
                _ => fail,
            }),
    )
    .parse_next(input)?;
    Ok(node)
}
