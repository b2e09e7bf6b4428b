//! `--partition I/N`, or `auto/N` with the number that a cluster engine gives each task of an array.

use crate::engine::partition::Partition;

/// Variables in which engines give a task its number, and the first number of an array.
const VARIABLES: [(&str, u64); 10] = [
    ("SLURM_ARRAY_TASK_ID", 0),
    ("SLURM_PROCID", 0),
    ("LSB_JOBINDEX", 1),
    ("PBS_ARRAY_INDEX", 0),
    ("PBS_ARRAYID", 0),
    ("SGE_TASK_ID", 1),
    ("JOB_COMPLETION_INDEX", 0),
    ("AWS_BATCH_JOB_ARRAY_INDEX", 0),
    ("BATCH_TASK_INDEX", 0),
    ("CLOUD_RUN_TASK_INDEX", 0),
];

/// Reads the argument. N is never taken from the environment: an engine that runs two tasks of an array again says that there
/// are two. `offset` is added to I, for sites whose arrays are shorter than N.
pub fn parse(text: &str, offset: u64, variable: impl Fn(&str) -> Option<String>) -> Result<Partition, String> {
    let form = || format!("--partition {text}: expected I/N or auto/N, as in --partition 3/16");
    let (index, count) = text.split_once('/').ok_or_else(form)?;
    let count: u64 = count.trim().parse().ok().filter(|n| *n > 0).ok_or_else(form)?;
    let (index, from) = match index.trim() {
        "auto" => from_environment(text, variable)?,
        index => (index.parse().map_err(|_| form())?, "I"),
    };
    let at = index.checked_add(offset).and_then(|index| Partition::new(index, count));
    at.ok_or_else(|| {
        let offset = if offset == 0 { String::new() } else { format!(" + {offset} of --partition-offset") };
        format!("--partition {text}: {from} is {index}{offset}, partitions go from 0 to {}", count - 1)
    })
}

/// The task's number from 0, and the variable that says so.
fn from_environment(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<(u64, &'static str), String> {
    // Some engines set theirs to a word outside an array, and LSF to 0.
    let number = |(name, first): &(&'static str, u64)| {
        let value = variable(name)?;
        Some((*name, value.trim().parse::<u64>().ok().and_then(|n| n.checked_sub(*first)), value))
    };
    let seen: Vec<_> = VARIABLES.iter().filter_map(number).collect();
    let list = || seen.iter().map(|(name, _, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ");
    // A step inside an array has both numbers of Slurm, and srun starts one task of it unless told otherwise.
    let is_array = seen.iter().any(|(name, number, _)| *name == "SLURM_ARRAY_TASK_ID" && number.is_some());
    let mut found = seen.iter().filter(|(name, ..)| !(is_array && *name == "SLURM_PROCID"));
    let numbers: Vec<(u64, &'static str)> = found.by_ref().filter_map(|(name, number, _)| Some(((*number)?, *name))).collect();
    match numbers[..] {
        [] if seen.is_empty() => Err(format!(
            "--partition {text}: no engine says which task this is (none of {} is set); give I itself",
            VARIABLES.map(|(name, _)| name).join(", ")
        )),
        [] => Err(format!("--partition {text}: {} is no number of a task; give I itself", list())),
        [first, ..] if numbers.iter().all(|other| other.0 == first.0) => Ok(first),
        _ => Err(format!("--partition {text}: {} contradict each other; give I itself", list())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, offset: u64, set: &[(&str, &str)]) -> Result<String, String> {
        let variable = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        parse(text, offset, variable).map(|p| p.to_string())
    }

    #[test]
    fn numbers_are_taken_as_they_are_meant() {
        assert_eq!(with("3/16", 0, &[]).unwrap(), "3/16");
        assert_eq!(with("auto/16", 0, &[("SLURM_ARRAY_TASK_ID", "7"), ("SLURM_ARRAY_TASK_COUNT", "2")]).unwrap(), "7/16");
        // The array's number, not that of its only step.
        assert_eq!(with("auto/16", 0, &[("SLURM_ARRAY_TASK_ID", "7"), ("SLURM_PROCID", "0")]).unwrap(), "7/16");
        assert_eq!(with("auto/4", 0, &[("SLURM_PROCID", "3")]).unwrap(), "3/4");
        assert_eq!(with("auto/16", 0, &[("LSB_JOBINDEX", "16")]).unwrap(), "15/16");
        assert_eq!(with("auto/3000", 1000, &[("SLURM_ARRAY_TASK_ID", "7")]).unwrap(), "1007/3000");
        assert_eq!(with("auto/4", 0, &[("SGE_TASK_ID", "undefined"), ("PBS_ARRAY_INDEX", "2")]).unwrap(), "2/4");
        assert_eq!(with("auto/4", 0, &[("PBS_ARRAYID", "2"), ("PBS_ARRAY_INDEX", "2")]).unwrap(), "2/4");
    }

    #[test]
    fn what_is_not_clear_is_refused() {
        for (text, set, told) in [
            ("16", &[][..], "expected I/N"),
            ("1/0", &[], "expected I/N"),
            ("x/4", &[], "expected I/N"),
            ("4/4", &[], "I is 4, partitions go from 0 to 3"),
            ("auto/4", &[], "no engine says which task this is"),
            ("auto/4", &[("SLURM_ARRAY_TASK_ID", "9")], "SLURM_ARRAY_TASK_ID is 9, partitions go from 0 to 3"),
            ("auto/4", &[("LSB_JOBINDEX", "0")], "LSB_JOBINDEX=0 is no number of a task"),
            ("auto/4", &[("SGE_TASK_ID", "undefined")], "SGE_TASK_ID=undefined is no number of a task"),
            ("auto/4", &[("SLURM_ARRAY_TASK_ID", "1"), ("JOB_COMPLETION_INDEX", "2")], "contradict each other"),
        ] {
            let refused = with(text, 0, set).unwrap_err();
            assert!(refused.contains(told), "{text}: {refused}");
        }
        assert!(with("3/4", 1, &[]).unwrap_err().contains("I is 3 + 1 of --partition-offset"));
    }
}
