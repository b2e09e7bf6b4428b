//! VCF-Zarr (github.com/sgkit-dev/vcf-zarr-spec, 0.5): arrays of one group that belong to each other by the names of their
//! axes (`variants`, `samples`) and by what they are called (`variant_position`, `sample_id`).
//!
//! Beside what is made of calls the output keeps what says which variant and which sample it is. Without axes in common, but
//! needed to read those: `contig_id` and `contig_length`, which `variant_contig` counts in, and `filter_id`, whose order
//! `variant_filter` has. `region_index` is none of them: it points into the chunks of the input.

use serde_json::{Map, Value};

/// True for the attributes of such a group.
pub fn is_vcf(attributes: &Map<String, Value>) -> bool {
    attributes.contains_key("vcf_zarr_version")
}

/// Of the names of a group, those that describe what calls are of.
pub fn beside_calls(names: Vec<String>) -> Vec<String> {
    let is_beside = |name: &String| ["variant_", "sample_", "contig_", "filter_"].iter().any(|prefix| name.starts_with(prefix));
    names.into_iter().filter(is_beside).collect()
}
