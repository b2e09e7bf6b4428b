//! `[engine]`: how a job is run; never what comes out.

use std::path::Path;
use std::time::Duration;

use toml::de::DeValue;

use super::input::lengths;
use super::table::{Table, describe, integer};
use super::{BlockSpec, EngineSpec, resolve_path};
use crate::codec::Park;

/// Parts of a block take a device milliseconds, compiling a kernel a second: what is silent for this long does not work.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(120);

/// More threads than this are a slip, and each holds a block.
const MAX_WORKERS: i64 = 4096;

impl Default for EngineSpec {
    fn default() -> Self {
        Self {
            memory: None,
            workers: None,
            block: BlockSpec::Auto,
            park: Park::Auto,
            scratch: None,
            scratch_limit: None,
            devices: None,
            device_memory: None,
            device_timeout: DEVICE_TIMEOUT,
            fallback: false,
        }
    }
}

pub fn read(mut table: Table<'_>, folder: &Path) -> EngineSpec {
    let spec = EngineSpec {
        memory: table.bytes("memory"),
        workers: workers(&mut table),
        block: block(&mut table),
        park: park(&mut table),
        scratch: table.string("scratch").map(|path| resolve_path(folder, &path)),
        scratch_limit: table.bytes("scratch_limit"),
        devices: devices(&mut table),
        device_memory: table.bytes("device_memory"),
        device_timeout: device_timeout(&mut table),
        fallback: table.one_of("fallback", &["none", "cpu"]) == Some("cpu"),
    };
    table.finish();
    spec
}

fn workers(table: &mut Table<'_>) -> Option<usize> {
    let value = table.get("workers")?.get_ref();
    match integer(value) {
        Some(n @ 1..=MAX_WORKERS) => usize::try_from(n).ok(),
        _ if value.as_str() == Some("auto") => None,
        _ => {
            table.problem("workers", format!("expected \"auto\" or a count from 1 to {MAX_WORKERS}, found {}", describe(value)));
            None
        }
    }
}

fn block(table: &mut Table<'_>) -> BlockSpec {
    let node = table.get("block");
    match node.map(|n| n.get_ref()) {
        None => BlockSpec::Auto,
        Some(DeValue::String(_)) => match table.one_of("block", &["auto", "source"]) {
            Some("source") => BlockSpec::Source,
            _ => BlockSpec::Auto,
        },
        Some(DeValue::Array(_)) => lengths(table, "block").map_or(BlockSpec::Auto, BlockSpec::Shape),
        Some(other) => {
            let message = format!("expected \"auto\", \"source\" or a shape such as [64, 256, 256], found {}", describe(other));
            table.problem("block", message);
            BlockSpec::Auto
        }
    }
}

fn park(table: &mut Table<'_>) -> Park {
    match table.one_of("park", &["auto", "none", "lz4", "blosc", "bitpack"]) {
        Some("none") => Park::None,
        Some("lz4") => Park::Lz4,
        Some("blosc") => Park::Blosc,
        Some("bitpack") => Park::Bitpack,
        _ => Park::Auto,
    }
}

fn device_timeout(table: &mut Table<'_>) -> Duration {
    if !table.has("device_timeout") {
        return DEVICE_TIMEOUT;
    }
    match table.duration("device_timeout") {
        Some(Duration::ZERO) => {
            table.problem("device_timeout", "expected a time above zero, such as \"2min\"");
            DEVICE_TIMEOUT
        }
        found => found.unwrap_or(DEVICE_TIMEOUT),
    }
}

/// `"auto"`, or a list of `"cpu"` and `"cuda:N"`. Whether they are there is for the plan to say.
pub(super) fn devices(table: &mut Table<'_>) -> Option<Vec<String>> {
    let value = table.get("devices")?.get_ref();
    if value.as_str() == Some("auto") {
        return None;
    }
    if let Some(word) = value.as_str() {
        table.problem("devices", format!("expected \"auto\" or a list; write [\"{word}\"]"));
        return None;
    }
    let list = table.strings("devices")?;
    if list.is_empty() {
        table.problem("devices", "the list is empty; write [\"cpu\"]");
    }
    for device in &list {
        let is_cuda = device.strip_prefix("cuda:").is_some_and(|n| n.parse::<u16>().is_ok());
        if !is_cuda && device != "cpu" {
            table.problem("devices", format!("\"{device}\" is no device; known are \"cpu\" and \"cuda:0\", \"cuda:1\", ..."));
        }
    }
    Some(list)
}
