//! What passes hand to each other: the state that all blocks read, and what a pass finds. Both are plain arrays of f64.
//!
//! Blocks hold *lines* of the matrix: whole rows, or whole columns where the matrix is wide. A basis has a row of `width`
//! numbers for each *place* on a line.

/// The sizes that all is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Places of a line.
    pub places: usize,
    /// Singular values and vectors that are wanted: k.
    pub wanted: usize,
    /// Vectors of the basis: those that are wanted, and some more.
    pub width: usize,
}

/// Words before the values of a state: passes made, the square of the matrix's Frobenius norm.
const HEAD: usize = 2;

impl Sizes {
    /// `None` where no memory holds them.
    pub fn new(places: u64, wanted: u64, width: u64) -> Option<Self> {
        let [places, wanted, width] = [places, wanted, width].map(|n| usize::try_from(n).ok());
        let sizes = Self { places: places?, wanted: wanted?, width: width? };
        let words = (sizes.places as u128 + sizes.width as u128 + 1) * (2 * sizes.width as u128 + 1) + HEAD as u128;
        (words * 8 < 1 << 60).then_some(sizes)
    }

    pub fn state_len(&self) -> usize {
        HEAD + self.wanted + self.places * self.width.max(2 * self.wanted)
    }

    pub fn found_len(&self) -> usize {
        1 + self.width * self.width + self.places * self.width
    }
}

/// A state as blocks read it.
#[derive(Clone, Copy)]
pub struct State<'a> {
    pub sizes: &'a Sizes,
    pub words: &'a [f64],
}

impl<'a> State<'a> {
    /// Passes made.
    pub fn passes(&self) -> u64 {
        self.words[0] as u64
    }

    pub fn norm_squared(&self) -> f64 {
        self.words[1]
    }

    /// The wanted singular values, largest first.
    pub fn values(&self) -> &'a [f64] {
        &self.words[HEAD..HEAD + self.sizes.wanted]
    }

    fn body(&self) -> &'a [f64] {
        &self.words[HEAD + self.sizes.wanted..]
    }

    /// The basis that the next pass multiplies the matrix by.
    pub fn basis(&self) -> &'a [f64] {
        &self.body()[..self.sizes.places * self.sizes.width]
    }

    /// Of the last state: the singular vectors along a line.
    pub fn vectors(&self) -> &'a [f64] {
        &self.body()[..self.sizes.places * self.sizes.wanted]
    }

    /// Of the last state: what the matrix is multiplied by to give the other singular vectors.
    pub fn factors(&self) -> &'a [f64] {
        let len = self.sizes.places * self.sizes.wanted;
        &self.body()[len..2 * len]
    }
}

/// A state as the control makes it.
pub struct NextState<'a> {
    pub sizes: &'a Sizes,
    pub words: &'a mut [f64],
}

impl NextState<'_> {
    pub fn read(&self) -> State<'_> {
        State { sizes: self.sizes, words: self.words }
    }

    pub fn count_pass(&mut self) {
        self.words[0] += 1.0;
    }

    pub fn set_norm_squared(&mut self, value: f64) {
        self.words[1] = value;
    }

    pub fn values(&mut self) -> &mut [f64] {
        &mut self.words[HEAD..HEAD + self.sizes.wanted]
    }

    fn body(&mut self) -> &mut [f64] {
        &mut self.words[HEAD + self.sizes.wanted..]
    }

    pub fn basis(&mut self) -> &mut [f64] {
        let len = self.sizes.places * self.sizes.width;
        &mut self.body()[..len]
    }

    /// Singular vectors and factors, in place of the basis.
    pub fn last(&mut self) -> (&mut [f64], &mut [f64]) {
        let len = self.sizes.places * self.sizes.wanted;
        self.body()[..2 * len].split_at_mut(len)
    }
}

/// What a pass finds. With A the matrix, Q the basis and Y = A Q.
pub struct Found<'a> {
    /// The sum of the squares of A, by the first pass.
    pub norm_squared: f64,
    /// The lower triangle of Y^T Y, in rows of `width`.
    pub gram: &'a [f64],
    /// A^T Y, a row for each place.
    pub image: &'a [f64],
}

impl<'a> Found<'a> {
    pub fn of(sizes: &Sizes, words: &'a [f64]) -> Self {
        let (head, rest) = words.split_at(1);
        let (gram, rest) = rest.split_at(sizes.width * sizes.width);
        Self { norm_squared: head[0], gram, image: &rest[..sizes.places * sizes.width] }
    }
}

/// The same, to be written.
pub struct Finding<'a> {
    pub norm_squared: &'a mut f64,
    pub gram: &'a mut [f64],
    pub image: &'a mut [f64],
}

impl<'a> Finding<'a> {
    pub fn of(sizes: &Sizes, words: &'a mut [f64]) -> Self {
        let (head, rest) = words.split_at_mut(1);
        let (gram, rest) = rest.split_at_mut(sizes.width * sizes.width);
        Self { norm_squared: &mut head[0], gram, image: &mut rest[..sizes.places * sizes.width] }
    }
}
