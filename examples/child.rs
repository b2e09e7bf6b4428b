//! A child process for `op = "external"` in plain Rust: protocol 1 in one page, without Python.
//!
//! The functions are those of the project's own tests, faulty ones too:
//!
//! ```toml
//! [[step]]
//! op = "external"
//! command = ["target/release/examples/child"]
//! depth = 2
//! boundary = "reflect"
//! dtype = "float64"
//! params = { function = "box_sum", r = 2 }
//! ```

use std::io::{self, BufRead, Read, Write};

use serde_json::{Value, json};

/// An array of doubles: whatever comes is widened, whatever goes is `float64`. `raw` keeps the bytes as they came.
struct Array {
    shape: Vec<usize>,
    dtype: String,
    values: Vec<f64>,
    raw: Vec<u8>,
}

struct Answer {
    shape: Vec<usize>,
    dtype: &'static str,
    bytes: Vec<u8>,
}

impl Answer {
    fn doubles(shape: Vec<usize>, values: &[f64]) -> Self {
        Self { shape, dtype: "<f8", bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect() }
    }
}

fn main() -> io::Result<()> {
    let mut stdin = io::stdin().lock();
    let mut stdout = io::stdout().lock();
    let mut line = String::new();
    stdin.read_line(&mut line)?;
    let hello: Value = serde_json::from_str(&line)?;
    assert_eq!(hello["halostream"], 1, "protocol 1 only");
    let params = &hello["params"];
    let function = params["function"].as_str().unwrap_or("halo_only");
    match function {
        "never_ready" => loop {
            std::thread::park();
        },
        "not_ready" => {
            writeln!(stdout, "{}", json!({"error": "no licence"}))?;
            return stdout.flush();
        }
        _ => writeln!(stdout, "{}", json!({"ready": true}))?,
    }
    stdout.flush()?;
    loop {
        line.clear();
        if stdin.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let head: Value = serde_json::from_str(&line)?;
        if function == "early" {
            // Half of a large answer before a byte of the input is read: whoever writes first and reads later hangs here.
            let shape = sizes(&head["inputs"][0]["shape"]);
            let zeros = vec![0; shape.iter().product::<usize>() * 8];
            let answer = Answer { shape, dtype: "<f8", bytes: zeros };
            send(&mut stdout, &head, &[answer])?;
            read_inputs(&mut stdin, &head)?;
            continue;
        }
        let mut inputs = read_inputs(&mut stdin, &head)?;
        if inputs.is_empty() {
            inputs.push(numbers(&head, params));
        }
        match call(function, params, &head, &inputs) {
            Ok(answers) => send(&mut stdout, &head, &answers)?,
            Err(error) => writeln!(stdout, "{}", json!({"block": head["block"], "error": error}))?,
        }
        stdout.flush()?;
    }
}

fn send(stdout: &mut impl Write, head: &Value, answers: &[Answer]) -> io::Result<()> {
    let outputs: Vec<Value> = answers.iter().map(|a| json!({"shape": a.shape, "dtype": a.dtype})).collect();
    writeln!(stdout, "{}", json!({"block": head["block"], "outputs": outputs}))?;
    answers.iter().try_for_each(|a| stdout.write_all(&a.bytes))?;
    stdout.flush()
}

fn sizes(value: &Value) -> Vec<usize> {
    value.as_array().into_iter().flatten().filter_map(|n| n.as_u64()).map(|n| n as usize).collect()
}

fn read_inputs(stdin: &mut impl Read, head: &Value) -> io::Result<Vec<Array>> {
    let read = |input: &Value| {
        let (shape, dtype) = (sizes(&input["shape"]), input["dtype"].as_str().unwrap_or_default().to_owned());
        let size: usize = dtype.get(2..).and_then(|n| n.parse().ok()).unwrap_or(1);
        let mut raw = vec![0; shape.iter().product::<usize>() * size];
        stdin.read_exact(&mut raw)?;
        let values = raw.chunks_exact(size).map(|b| widen(&dtype, b)).collect();
        Ok(Array { shape, dtype, values, raw })
    };
    head["inputs"].as_array().into_iter().flatten().map(read).collect()
}

/// What `command` inputs are asked for, as if somebody had sent it: cells of an array of `params.shape`, numbered in C order.
fn numbers(head: &Value, params: &Value) -> Array {
    let core: Vec<Vec<usize>> = head["core"].as_array().into_iter().flatten().map(sizes).collect();
    let shape: Vec<usize> = core.iter().map(|range| range[1] - range[0]).collect();
    let whole = sizes(&params["shape"]);
    let number = |at: usize| {
        let (mut rest, mut number, mut scale) = (at, 0, 1);
        for axis in (0..shape.len()).rev() {
            number += (core[axis][0] + rest % shape[axis]) * scale;
            rest /= shape[axis];
            scale *= whole[axis];
        }
        number as f64
    };
    let values: Vec<f64> = (0..shape.iter().product()).map(number).collect();
    let raw = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Array { shape, dtype: "<f8".to_owned(), values, raw }
}

fn widen(dtype: &str, b: &[u8]) -> f64 {
    match (dtype, b) {
        ("<f8", &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        ("<f4", &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
        ("<i4", &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).into(),
        ("<i8", &[a, b, c, d, e, f, g, h]) => i64::from_le_bytes([a, b, c, d, e, f, g, h]) as f64,
        ("<i2", &[a, b]) => i16::from_le_bytes([a, b]).into(),
        ("|u1" | "|b1", &[a]) => a.into(),
        _ => f64::NAN,
    }
}

/// The typestr as a constant, for handing an input back.
fn typestr(dtype: &str) -> &'static str {
    ["|b1", "|u1", "<i2", "<i4", "<i8", "<f4", "<f8"].into_iter().find(|t| *t == dtype).unwrap_or("?")
}

fn call(function: &str, params: &Value, head: &Value, inputs: &[Array]) -> Result<Vec<Answer>, String> {
    let x = inputs.first().ok_or("no input")?;
    let same = || Answer { shape: x.shape.clone(), dtype: typestr(&x.dtype), bytes: x.raw.clone() };
    let map = |f: &dyn Fn(f64) -> f64| Answer::doubles(x.shape.clone(), &x.values.iter().map(|v| f(*v)).collect::<Vec<_>>());
    Ok(match function {
        "halo_only" => vec![same()],
        "add_one" => vec![map(&|v| v + 1.0)],
        "slow" => {
            std::thread::sleep(std::time::Duration::from_millis(params["ms"].as_u64().unwrap_or(100)));
            vec![same()]
        }
        // Several outputs: the array itself and twice its values.
        "both" => vec![same(), map(&|v| 2.0 * v)],
        "divide" => {
            let total = inputs.get(1).and_then(|y| y.values.first()).ok_or("no total to divide by")?;
            vec![map(&|v| v / total)]
        }
        "box_sum" => {
            let radius = params["r"].as_u64().unwrap_or(1) as usize;
            vec![Answer::doubles(x.shape.clone(), &box_sum(x, radius))]
        }
        // Drops the last axis, adds one of length 3: the sum, the first and the last value.
        "ends" => {
            let n = *x.shape.last().ok_or("no axes")?;
            let values: Vec<f64> =
                x.values.chunks_exact(n).flat_map(|row| [row.iter().sum::<f64>(), row[0], row[n - 1]]).collect();
            let mut shape = x.shape.clone();
            shape.pop();
            shape.push(3);
            vec![Answer::doubles(shape, &values)]
        }
        // One row per block: its sum.
        "block_sum" => vec![Answer::doubles(vec![1; x.shape.len()], &[x.values.iter().sum()])],
        "pid" => vec![map(&|_| std::process::id().into())],
        "regions" => {
            let region = &head["inputs"][0]["region"][0];
            let (start, stop) = (region[0].as_f64().unwrap_or(f64::NAN), region[1].as_f64().unwrap_or(f64::NAN));
            let core = head["core"][0][0].as_f64().unwrap_or(f64::NAN);
            let mut i = 0.0;
            let mut next = || {
                i += 1.0;
                if i == 1.0 {
                    start
                } else if i == 2.0 {
                    stop
                } else {
                    core
                }
            };
            vec![Answer::doubles(x.shape.clone(), &x.values.iter().map(|_| next()).collect::<Vec<_>>())]
        }
        "wrong_shape" => vec![Answer::doubles(vec![1, 10], &[0.0; 10])],
        "wrong_dtype" => {
            let bytes = x.values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
            vec![Answer { shape: x.shape.clone(), dtype: "<f4", bytes }]
        }
        "bad_bool" => vec![Answer { shape: x.shape.clone(), dtype: "|b1", bytes: vec![2; x.values.len()] }],
        "error" => return Err("ZeroDivisionError: division by zero".to_owned()),
        "dies" => {
            eprintln!("something broke inside");
            std::process::exit(3)
        }
        "aborts" => std::process::abort(),
        // As the kernel does when memory runs out.
        "killed" => {
            // SAFETY: ends this process, nothing else.
            unsafe { libc::raise(libc::SIGKILL) };
            return Err("SIGKILL did nothing".to_owned());
        }
        "dies_once" => {
            let marker = params["marker"].as_str().ok_or("params.marker is missing")?;
            if std::fs::File::create_new(marker).is_ok() {
                std::process::exit(3);
            }
            vec![same()]
        }
        "hangs" => loop {
            std::thread::park();
        },
        "greedy" => {
            let mut held = vec![0u8; 64 << 20];
            held.iter_mut().step_by(4096).for_each(|b| *b = 1);
            std::thread::sleep(std::time::Duration::from_secs(params["seconds"].as_u64().unwrap_or(0)));
            std::hint::black_box(held);
            vec![same()]
        }
        "garbage" => {
            println_raw("hello from the user's print\n");
            vec![same()]
        }
        "endless" => {
            while println_raw(&"x".repeat(4096)) {}
            std::process::exit(1)
        }
        "too_much" => {
            let mut answer = same();
            answer.bytes.extend_from_slice(b"tail");
            vec![answer]
        }
        other => return Err(format!("no function {other:?}")),
    })
}

/// Writes past the protocol; false once nobody reads.
fn println_raw(text: &str) -> bool {
    use std::os::fd::FromRawFd;
    // SAFETY: descriptor 1 is stdout; ManuallyDrop keeps it open.
    let mut out = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(1) });
    out.write_all(text.as_bytes()).is_ok()
}

/// The sum over the window `-r..=r` on every axis; cells outside the block count as 0.
fn box_sum(x: &Array, radius: usize) -> Vec<f64> {
    let mut values = x.values.clone();
    let mut inner = 1;
    for &n in x.shape.iter().rev() {
        let before = values.clone();
        for (i, value) in values.iter_mut().enumerate() {
            let at = i / inner % n;
            let first = i - at * inner;
            *value = (at.saturating_sub(radius)..(at + radius + 1).min(n)).map(|k| before[first + k * inner]).sum();
        }
        inner *= n;
    }
    values
}
