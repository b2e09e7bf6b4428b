//! Which order statistics make a quantile, and how: Hyndman and Fan's nine definitions and four older ones, under numpy's
//! names and with its arithmetic in float64.
//!
//! Where numpy's interpolation multiplies zero by infinity, or its difference overflows (that of int8 does, silently), the
//! true value is taken instead: the median of (1, 2, inf) is 2, where numpy's is NaN.

use bytemuck::bytes_of;

use crate::array::DType;
use crate::operators::OperatorError;
use crate::operators::reduce::element::Real;
use crate::operators::reduce::{NOTHING, write_float};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    InvertedCdf,
    AveragedInvertedCdf,
    ClosestObservation,
    InterpolatedInvertedCdf,
    Hazen,
    Weibull,
    Linear,
    MedianUnbiased,
    NormalUnbiased,
    Lower,
    Higher,
    Midpoint,
    Nearest,
}

pub const METHODS: [(&str, Method); 13] = [
    ("linear", Method::Linear),
    ("lower", Method::Lower),
    ("higher", Method::Higher),
    ("midpoint", Method::Midpoint),
    ("nearest", Method::Nearest),
    ("inverted_cdf", Method::InvertedCdf),
    ("averaged_inverted_cdf", Method::AveragedInvertedCdf),
    ("closest_observation", Method::ClosestObservation),
    ("interpolated_inverted_cdf", Method::InterpolatedInvertedCdf),
    ("hazen", Method::Hazen),
    ("weibull", Method::Weibull),
    ("median_unbiased", Method::MedianUnbiased),
    ("normal_unbiased", Method::NormalUnbiased),
];

impl Method {
    /// The result is an element: nothing is interpolated.
    pub fn picks_elements(self) -> bool {
        use Method::*;
        matches!(self, InvertedCdf | ClosestObservation | Lower | Higher | Nearest)
    }
}

/// A quantile lies between two places among the sorted values (from 0), `weight` of the way to the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between {
    pub low: u64,
    pub high: u64,
    pub weight: f64,
}

#[derive(Clone, Debug)]
pub struct Quantiles {
    pub q: Vec<f64>,
    pub method: Method,
}

impl Quantiles {
    /// How many order statistics [`ranks`](Self::ranks) names.
    pub fn ranks_len(&self) -> usize {
        self.q.len() * if self.method.picks_elements() { 1 } else { 2 }
    }

    /// The places that are needed among `count` > 0 sorted values: ascending, some perhaps twice.
    pub fn ranks(&self, count: u64) -> Vec<u64> {
        let between = self.q.iter().map(|q| self.between(*q, count));
        let mut ranks: Vec<u64> = match self.method.picks_elements() {
            true => between.map(|b| b.low).collect(),
            false => between.flat_map(|b| [b.low, b.high]).collect(),
        };
        ranks.sort_unstable();
        ranks
    }

    pub fn between(&self, q: f64, count: u64) -> Between {
        let n = count as f64;
        let last = (count - 1) as f64;
        let pick = |place: f64| {
            let place = place.clamp(0.0, last) as u64;
            Between { low: place, high: place, weight: 0.0 }
        };
        let is_whole = |place: f64| place == place.floor();
        let along = |place: f64, weight: fn(f64) -> f64| match place {
            v if v >= last => pick(last),
            v if v < 0.0 => pick(0.0),
            v => Between { low: v as u64, high: v as u64 + 1, weight: weight(v - v.floor()) },
        };
        let with = |alpha: f64, beta: f64| along(n * q + (alpha + q * (1.0 - alpha - beta)) - 1.0, |w| w);
        match self.method {
            Method::Linear => along(last * q, |w| w),
            Method::InterpolatedInvertedCdf => with(0.0, 1.0),
            Method::Hazen => with(0.5, 0.5),
            Method::Weibull => with(0.0, 0.0),
            Method::MedianUnbiased => with(1.0 / 3.0, 1.0 / 3.0),
            Method::NormalUnbiased => with(3.0 / 8.0, 3.0 / 8.0),
            Method::AveragedInvertedCdf => along(n * q - 1.0, |w| if w == 0.0 { 0.5 } else { 1.0 }),
            Method::Midpoint => along(0.5 * ((last * q).floor() + (last * q).ceil()), |w| if w == 0.0 { 0.0 } else { 0.5 }),
            Method::Lower => pick((last * q).floor()),
            Method::Higher => pick((last * q).ceil()),
            Method::Nearest => pick((last * q).round_ties_even()),
            Method::InvertedCdf => {
                let place = n * q - 1.0;
                pick(if is_whole(place) { place } else { place.floor() + 1.0 })
            }
            Method::ClosestObservation => {
                let place = n * q - 1.5;
                let is_odd = place.floor().rem_euclid(2.0) == 1.0;
                pick(if is_whole(place) && is_odd { place } else { place.floor() + 1.0 })
            }
        }
    }
}

/// How order statistics become values of the output.
#[derive(Clone, Debug)]
pub struct Finish {
    pub quantiles: Quantiles,
    pub to: DType,
    /// Results are elements of the output's own dtype.
    pub copies: bool,
}

impl Finish {
    /// The `i`-th quantile among `count` values that are not NaN, of which `at` gives the ones at the places of
    /// [`Quantiles::ranks`]; `has_nan`: there were NaNs beside them.
    pub fn write<T: Real>(
        &self,
        i: usize,
        count: u64,
        has_nan: bool,
        at: impl Fn(u64) -> T,
        out: &mut [u8],
    ) -> Result<(), OperatorError> {
        if has_nan || count == 0 {
            if !self.to.is_float() {
                return Err(OperatorError::data(NOTHING));
            }
            write_float(self.to, f64::NAN, 0.0, out);
            return Ok(());
        }
        let between = self.quantiles.between(self.quantiles.q[i], count);
        let low = at(between.low);
        if self.copies {
            out.copy_from_slice(bytes_of(&low));
        } else if between.weight == 0.0 {
            write_float(self.to, low.wide(), 0.0, out);
        } else {
            write_float(self.to, interpolate(low, at(between.high), between.weight), 0.0, out);
        }
        Ok(())
    }
}

/// numpy's `_lerp`.
fn interpolate<T: Real>(a: T, b: T, weight: f64) -> f64 {
    let (low, high): (u64, u64) = (a.rank().into(), b.rank().into());
    if low == high || weight == 1.0 {
        return b.wide();
    }
    // The difference of integers is exact before it is rounded; their ranks lie as far apart as they do.
    let difference = if T::HAS_NAN { b.wide() - a.wide() } else { (high - low) as f64 };
    if !difference.is_finite() {
        return a.wide() * (1.0 - weight) + b.wide() * weight;
    }
    if weight >= 0.5 { b.wide() - difference * (1.0 - weight) } else { a.wide() + difference * weight }
}
