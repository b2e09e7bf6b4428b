//! The input, unchanged: to copy an array into another layout as a step of its own, and the simplest example of an
//! operator. Costs nothing: the block it gets is the block it gives.

use super::pointwise::{Elementwise, Fault, unary};
use super::{Info, Operator};
use crate::array::{Block, DType};
use crate::config::table::Table;

pub static INFO: Info = Info {
    name: "identity",
    summary: "the input, unchanged",
    kind: "map",
    inputs: "one array, any dtype",
    outputs: "the same",
    halo: "none",
    boundary: "-",
    devices: "cpu",
    cost: "none: the block it gets is the block it gives",
    source: "-",
    params: &[],
    build,
};

fn build(_table: &mut Table<'_>) -> Option<Box<dyn Operator>> {
    unary("identity", |input| Ok(Same(input.dtype)))
}

struct Same(DType);

impl Elementwise for Same {
    fn dtype(&self) -> DType {
        self.0
    }

    fn is_light(&self) -> bool {
        true
    }

    fn fill(&self, input: &Block, out: &mut [u8]) -> Result<(), Fault> {
        input.copy_to(out);
        Ok(())
    }

    fn is_identity(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Whole, bind, map_one};
    use super::*;
    use crate::array::{Region, Scalar};

    #[test]
    fn the_block_passes_through_with_what_is_known_of_it() {
        let values: Vec<u16> = (0..60).collect();
        let mut whole = Whole::new(Block::from_values(&[6, 10], &values));
        whole.meta.missing = Some(Scalar::of(3u16));
        whole.meta.max_value = Some(59);
        whole.meta.attributes.insert("units".into(), "m".into());
        let bound = bind("identity", "", &[&whole]).unwrap();
        assert_eq!((bound.outputs[0].missing, bound.outputs[0].max_value), (Some(Scalar::of(3u16)), Some(59)));
        assert_eq!(bound.outputs[0].attributes["units"], "m");
        let core = Region::from_ranges(&[(2, 4), (1, 9)]);
        let got = map_one(&bound, &[&whole], &core).unwrap();
        assert!(!got.is_contiguous(), "a view, not a copy");
        assert_eq!(got.row::<u16>(&[1]).unwrap(), &values[31..39]);
        assert!(bind("identity", "x = 1", &[&whole]).unwrap_err().contains("unknown key"));
        assert!(bind("identity", "", &[&whole, &whole]).unwrap_err().contains("takes one input"));
    }
}
