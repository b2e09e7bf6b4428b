//! A step of a block on the devices: cut into parts that fit, each staged, run and written to the block's outputs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::fleet::{Fleet, Undone};
use super::job::Job;
use crate::array::budget::BudgetError;
use crate::array::buffer::capacity_for;
use crate::array::{Block, Buffer, DType, Region};
use crate::config::units::format_bytes;
use crate::operators::{Computed, DeviceMap, DevicePart, MapTask, OperatorError, Padded, Workspace};

/// Parts of a block are halved until their staging is below this: long enough for full speed of a copy, short enough for
/// the parts of one block to overlap.
pub const STAGING: u64 = 32 << 20;

/// Bytes of the staging for a part that needs so many: parts differ a little at an array's edges, and pinning memory anew
/// takes longer than the copy it is for. Below [`STAGING`], which the plan counts at least.
pub fn staging_class(bytes: usize) -> usize {
    match bytes as u64 <= STAGING {
        true => bytes.max(1).next_power_of_two(),
        false => capacity_for(bytes),
    }
}

/// The inputs' regions and the job of a part whose staging is below [`STAGING`] and whose buffers fit `room`; else `None`.
fn fitting(entry: &dyn DeviceMap, given: &[Region], part: &Region, room: u64, can_split: bool) -> Option<(Vec<Region>, Job)> {
    let needs = entry.needs(given, part);
    let job = entry.job(&needs, part)?;
    let is_small = job.staging_bytes() as u64 <= STAGING || !can_split;
    (job.device_bytes() <= room && is_small).then_some((needs, job))
}

/// Host memory of the largest part of a core of this shape, and what `finish` takes beside it: counted in the plan.
/// `given`: the inputs' regions for a core that begins at 0.
pub fn host_bytes(entry: &dyn DeviceMap, given: &[Region], core: &Region) -> u64 {
    let (_, job) = largest(entry, given, core, u64::MAX);
    // Rounding may make the other half of a split a little larger, along each axis once.
    let staging = job.map_or(STAGING, |job| job.staging_bytes() as u64);
    let bound = staging.saturating_add(staging / 4).max(STAGING);
    bound.saturating_add(entry.scratch_bytes())
}

/// Device memory of the smallest part of such a core.
pub fn smallest_device_bytes(entry: &dyn DeviceMap, given: &[Region], core: &Region) -> u64 {
    let mut part = core.clone();
    while let Some([_, high]) = entry.split(&part) {
        part = high;
    }
    entry.job(&entry.needs(given, &part), &part).map_or(u64::MAX, |job| job.device_bytes())
}

fn largest(entry: &dyn DeviceMap, given: &[Region], core: &Region, room: u64) -> (Region, Option<Job>) {
    let mut part = core.clone();
    loop {
        let halves = entry.split(&part);
        if let Some((_, job)) = fitting(entry, given, &part, room, halves.is_some()) {
            return (part, Some(job));
        }
        match halves {
            // The upper half is the longer one.
            Some([_, high]) => part = high,
            None => return (part, None),
        }
    }
}

/// The outputs of a task; `None` when the CPU is to compute it.
pub fn apply(
    fleet: &Fleet,
    entry: &dyn DeviceMap,
    dtypes: &[DType],
    inputs: &[Padded],
    task: &MapTask<'_>,
    work: &mut Workspace<'_>,
) -> Result<Option<Vec<Option<Computed>>>, OperatorError> {
    let given: Vec<Region> = inputs.iter().map(|p| p.region.clone()).collect();
    let mut outputs: Vec<Option<Buffer>> = Vec::new();
    for ((region, dtype), wanted) in task.outputs.iter().zip(dtypes).zip(task.wanted) {
        outputs.push(if *wanted { Some(work.buffer(region.count() * dtype.size())?) } else { None });
    }
    let mut parts = vec![task.core.clone()];
    let mut is_first = true;
    while let Some(part) = parts.pop() {
        let Some(room) = fleet.room() else { return without_devices(fleet, entry) };
        let halves = entry.split(&part);
        let Some((needs, job)) = fitting(entry, &given, &part, room, halves.is_some()) else {
            let [low, high] = halves.ok_or_else(|| no_room(entry, &given, &part, room))?;
            parts.extend([high, low]);
            continue;
        };
        let job = Arc::new(job);
        let lease = work.reserve(staging_class(job.staging_bytes()) as u64)?;
        let mut staging = fleet.staging(job.staging_bytes(), work.stop);
        let fill = |to: &mut [u8]| {
            for (i, (input, need)) in inputs.iter().zip(&needs).enumerate() {
                input.block.cut(&input.region, need).copy_to(&mut to[job.staged(i)]);
            }
        };
        fill(staging.bytes_mut());
        // Once a part is on a device the rest of its block stays with the devices.
        let only_if_free = fleet.cpu.mixes && is_first;
        match fleet.run(&job, staging, fill, only_if_free, work.stop) {
            Ok(staging) => {
                let done = DevicePart { core: &part, needs: &needs, job: &job };
                entry.finish(&done, staging.bytes(), task, &mut outputs, work)?;
                fleet.give_back(staging);
            }
            Err(Undone::TooLarge) => {
                let [low, high] = halves.ok_or_else(|| no_room(entry, &given, &part, room))?;
                fleet.halved.fetch_add(1, Ordering::Relaxed);
                parts.extend([high, low]);
            }
            Err(Undone::Busy) => return Ok(None),
            Err(Undone::NoneLeft) => return without_devices(fleet, entry),
            Err(Undone::Failed(why)) => return Err(OperatorError::data(why)),
            Err(Undone::Stopped) => return Err(BudgetError::Stopped.into()),
        }
        drop(lease);
        is_first = false;
    }
    let made = outputs.into_iter().zip(task.outputs).zip(dtypes);
    Ok(Some(
        made.map(|((buffer, region), dtype)| {
            buffer.map(|b| Computed { block: Block::new(b, *dtype, region.shape()), region: region.clone() })
        })
        .collect(),
    ))
}

/// All devices are lost: an exact step may go on here, where the job allows it.
fn without_devices<T>(fleet: &Fleet, entry: &dyn DeviceMap) -> Result<Option<T>, OperatorError> {
    match fleet.cpu.takes_over && entry.is_exact() {
        true => Ok(None),
        false => Err(OperatorError::data(format!(
            "no device is left ({}); run the same command again to resume, or set engine.fallback = \"cpu\"",
            fleet.losses()
        ))),
    }
}

fn no_room(entry: &dyn DeviceMap, given: &[Region], part: &Region, room: u64) -> OperatorError {
    let needed = entry.job(&entry.needs(given, part), part).map_or(u64::MAX, |job| job.device_bytes());
    OperatorError::data(format!(
        "the smallest part of a block, {part}, needs {} of device memory, {} are to be had; raise engine.device_memory or free the device",
        format_bytes(needed),
        format_bytes(room)
    ))
}
