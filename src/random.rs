//! Random numbers that are a function of a seed and coordinates, in any order, on any machine.
//!
//! A [`Key`] is a 64-bit state; [`Key::at`] derives the key of one coordinate, [`Key::bits`] the i-th draw of a key. Both
//! are one round of splitmix64 (add a multiple of an odd constant, then Stafford's 13th finaliser; Steele, Lea, Flood 2014),
//! with different constants, so that a key's draws and its children do not meet. A draw costs about 1 ns.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const CHILD: u64 = 0xd1b5_4a32_d192_ed03;
const CHILD_SALT: u64 = 0x5851_f42d_4c95_7f2d;

/// Every input bit reaches every output bit; a bijection.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A place in the tree of random numbers.
#[derive(Clone, Copy, Debug)]
pub struct Key(u64);

impl Key {
    /// The root of one use of a seed. Tags must differ between uses.
    pub fn new(seed: u64, tag: &[u8; 8]) -> Self {
        Key(mix(seed)).at(u64::from_le_bytes(*tag))
    }

    /// The key of coordinate `x` below this one.
    pub fn at(self, x: u64) -> Self {
        Key(mix((self.0 ^ CHILD_SALT).wrapping_add(x.wrapping_mul(CHILD))))
    }

    /// Draw `i` of this key.
    pub fn bits(self, i: u64) -> u64 {
        mix(self.0.wrapping_add(i.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// Draw `i` as a number in [0, 1).
    pub fn unit(self, i: u64) -> f64 {
        unit(self.bits(i))
    }

    /// Draw `i` as a number in [low, high).
    pub fn range(self, i: u64, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit(i)
    }
}

fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}
