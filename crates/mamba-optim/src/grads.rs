//! Reductions over the gradient arena, with bits that do not depend on the number of threads or the machine.
//!
//! The order of every sum is fixed by lengths alone:
//!
//! - the arena is cut into blocks of [`BLOCK`] elements;
//! - inside a block, element `i` goes to lane `i mod` [`LANES`]; a lane adds its squares in order, in `f64`, and
//!   the lanes are folded by halves (lane `j` takes lane `j + 16`, then `j + 8`, … `j + 1`);
//! - block sums are added in order.
//!
//! The square of an `f32` is exact in `f64`, so a fused multiply-add gives the same bits as a separate one, and
//! a sum of squares of finite elements cannot overflow: the norm is finite exactly if every element is.

use core::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::groups::{ControlSpans, ParamGroups, StridedSpan};

/// Elements whose squares are summed into one partial result.
pub const BLOCK: usize = 1 << 14;

/// Independent sums inside a block.
pub const LANES: usize = 32;

/// Sum of `(g * factor)²`, the product rounded to `f32` first: with `factor` = 1/scale that is the sum over the
/// unscaled gradient, with 1 over the gradient as it is.
pub fn sum_of_squares(grads: &[f32], factor: f32) -> f64 {
    let arch = Arch::new();
    if grads.len() <= BLOCK {
        return arch.dispatch(SumSquares { block: grads, factor });
    }
    let partial: Vec<f64> =
        grads.par_chunks(BLOCK).map(|block| arch.dispatch(SumSquares { block, factor })).collect();
    partial.iter().sum()
}

/// L2 norm of a gradient arena; non-finite exactly if an element is.
pub fn global_norm(grads: &[f32]) -> f64 {
    sum_of_squares(grads, 1.0).sqrt()
}

/// [`sum_of_squares`] over control spans. A span of one row is summed like an arena. Of a span of several, each
/// row is summed like a block, however long; rows are added in order in groups that hold at most [`BLOCK`]
/// elements (one row at least), groups and spans in order. The spans must lie inside `grads`.
pub(crate) fn control_sum_of_squares(grads: &[f32], control: &ControlSpans, factor: f32) -> f64 {
    let arch = Arch::new();
    let mut total = 0.0;
    for span in control.spans() {
        if span.rows == 1 {
            total += sum_of_squares(&grads[span.row(0)], factor);
            continue;
        }
        let per_group = rows_per_group(span);
        let partial: Vec<f64> = (0..span.rows.div_ceil(per_group))
            .into_par_iter()
            .map(|group| {
                let rows = group * per_group..span.rows.min((group + 1) * per_group);
                arch.dispatch(SumRows { grads, span, rows, factor })
            })
            .collect();
        total += partial.iter().sum::<f64>();
    }
    total
}

/// Multiplies the elements of control spans in place. The spans must lie inside `grads`.
pub(crate) fn scale_control(grads: &mut [f32], control: &ControlSpans, factor: f32) {
    for span in control.spans() {
        for row in 0..span.rows {
            scale(&mut grads[span.row(row)], factor);
        }
    }
}

/// Multiplies every element in place.
pub fn scale(grads: &mut [f32], factor: f32) {
    let arch = Arch::new();
    let one = |block: &mut [f32]| arch.dispatch(Scale { block, factor });
    if grads.len() <= BLOCK {
        one(grads);
    } else {
        grads.par_chunks_mut(BLOCK).for_each(one);
    }
}

/// Whether an element is Inf or NaN.
pub fn has_non_finite(grads: &[f32]) -> bool {
    let arch = Arch::new();
    if grads.len() <= BLOCK {
        return arch.dispatch(FindNonFinite(grads));
    }
    grads.par_chunks(BLOCK).any(|block| arch.dispatch(FindNonFinite(block)))
}

/// Divides by the loss scale in place: `g * inv_scale`. Returns whether the *scaled* gradient held an Inf or
/// NaN; then nothing is written. An element that becomes infinite only by the division does not count, as in
/// PyTorch; the norm shows it.
pub fn unscale(grads: &mut [f32], inv_scale: f32) -> bool {
    let found_inf = has_non_finite(grads);
    if !found_inf && inv_scale != 1.0 {
        scale(grads, inv_scale);
    }
    found_inf
}

/// Where the first Inf or NaN of a gradient arena lies.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFiniteAt {
    /// Tensor name; `None` for padding between tensors.
    pub name: Option<String>,
    /// Flat index inside the tensor (inside the arena where there is no tensor).
    pub index: usize,
    /// Flat index inside the arena.
    pub arena_index: usize,
    /// The value.
    pub value: f32,
}

/// Finds the first Inf or NaN in arena order; `None` where all elements are finite.
pub fn first_non_finite(grads: &[f32], groups: &ParamGroups) -> Option<NonFiniteAt> {
    let arch = Arch::new();
    let block = grads.par_chunks(BLOCK).position_first(|b| arch.dispatch(FindNonFinite(b)))?;
    let (arena_index, &value) = grads.iter().enumerate().skip(block * BLOCK).find(|(_, g)| !g.is_finite())?;
    let span = groups.span_at(arena_index);
    Some(NonFiniteAt {
        name: span.map(|s| s.name.clone()),
        index: arena_index - span.map_or(0, |s| s.range.start),
        arena_index,
        value,
    })
}

fn rows_per_group(span: &StridedSpan) -> usize {
    (BLOCK / span.width).max(1)
}

// The passes are structs, not closures: only a body marked `inline(always)` is sure to be compiled for the vector
// width that `dispatch` chose.

struct SumSquares<'a> {
    block: &'a [f32],
    factor: f32,
}

impl WithSimd for SumSquares<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        block_sum(self.block, self.factor)
    }
}

/// Rows `rows` of a strided span, added in order.
struct SumRows<'a> {
    grads: &'a [f32],
    span: &'a StridedSpan,
    rows: Range<usize>,
    factor: f32,
}

impl WithSimd for SumRows<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let mut total = 0.0;
        for row in self.rows {
            total += block_sum(&self.grads[self.span.row(row)], self.factor);
        }
        total
    }
}

struct Scale<'a> {
    block: &'a mut [f32],
    factor: f32,
}

impl WithSimd for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for g in self.block {
            *g *= self.factor;
        }
    }
}

struct FindNonFinite<'a>(&'a [f32]);

impl WithSimd for FindNonFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let mut found = 0u32;
        for g in self.0 {
            // All exponent bits set: Inf or NaN.
            found |= u32::from(g.to_bits() & 0x7f80_0000 == 0x7f80_0000);
        }
        found != 0
    }
}

/// Lanes that are one array in the code below. Four arrays of their own stay in registers; one array of all
/// lanes is kept in memory, which is six times slower. The order of the sum is the same.
const GROUP: usize = LANES / 4;

#[inline(always)]
fn block_sum(block: &[f32], factor: f32) -> f64 {
    let [mut a, mut b, mut c, mut d] = [[0.0f64; GROUP]; 4];
    let (whole, _) = block.as_chunks::<GROUP>().0.as_chunks::<4>();
    for [ga, gb, gc, gd] in whole {
        add_squares(&mut a, ga, factor);
        add_squares(&mut b, gb, factor);
        add_squares(&mut c, gc, factor);
        add_squares(&mut d, gd, factor);
    }
    let mut groups = [a, b, c, d];
    let lanes = groups.as_flattened_mut();
    add_squares(lanes, &block[whole.len() * LANES..], factor);
    fold_by_halves(lanes)
}

/// Sum of the [`LANES`] lanes: the first half takes the second, then a quarter the next, down to one.
#[inline(always)]
pub(crate) fn fold_by_halves(lanes: &mut [f64]) -> f64 {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (a, b) in low.iter_mut().zip(high) {
            *a += *b;
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn add_squares(lanes: &mut [f64], grads: &[f32], factor: f32) {
    for (lane, &g) in lanes.iter_mut().zip(grads) {
        let x = f64::from(g * factor);
        *lane += x * x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::ParamSpan;

    fn wave(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 64.0 - 7.0).collect()
    }

    #[test]
    fn small_norms_are_exact() {
        assert_eq!(global_norm(&[]), 0.0);
        assert_eq!(global_norm(&[-3.0]), 3.0);
        assert_eq!(global_norm(&[3.0, 4.0]), 5.0);
        assert_eq!(sum_of_squares(&[3.0, 4.0], 0.5), 6.25);
    }

    #[test]
    fn integers_sum_exactly_at_every_edge_of_lanes_and_blocks() {
        for len in [1, 31, 32, 33, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 33] {
            let grads: Vec<f32> = (0..len).map(|i| ((i % 11) as f32) - 5.0).collect();
            let want: i64 = (0..len as i64).map(|i| (i % 11 - 5) * (i % 11 - 5)).sum();
            assert_eq!(sum_of_squares(&grads, 1.0), want as f64, "{len}");
        }
    }

    #[test]
    fn the_documented_order_is_the_order() {
        let grads: Vec<f32> = wave(3 * BLOCK + 77).iter().map(|g| g * 1.000_123).collect();
        let mut total = 0.0;
        for block in grads.chunks(BLOCK) {
            let mut lanes = [0.0f64; LANES];
            for (i, &g) in block.iter().enumerate() {
                lanes[i % LANES] += f64::from(g) * f64::from(g);
            }
            for half in [16, 8, 4, 2, 1] {
                for j in 0..half {
                    lanes[j] += lanes[j + half];
                }
            }
            total += lanes[0];
        }
        assert_eq!(sum_of_squares(&grads, 1.0).to_bits(), total.to_bits());
    }

    #[test]
    fn the_norm_is_finite_exactly_if_every_element_is() {
        let mut grads = vec![f32::MAX; BLOCK + 3];
        assert!(global_norm(&grads).is_finite());
        grads[BLOCK + 1] = f32::NEG_INFINITY;
        assert_eq!(global_norm(&grads), f64::INFINITY);
        grads[5] = f32::NAN;
        assert!(global_norm(&grads).is_nan());
    }

    #[test]
    fn one_row_and_many_rows_of_control_spans() {
        let grads = wave(40_000);
        let columns = StridedSpan::columns(100, 300, 130, 7..60);
        let control = ControlSpans::new(40_000, vec![columns, StridedSpan::from(0..90)]).unwrap();
        let square = |r: core::ops::Range<usize>| grads[r].iter().map(|&g| f64::from(g).powi(2)).sum::<f64>();
        let want = (0..300).map(|r| square(columns.row(r))).sum::<f64>() + square(0..90);
        let got = control_sum_of_squares(&grads, &control, 1.0);
        // Multiples of 2^-12 far below 2^53: every order gives the exact sum.
        assert_eq!(got, want);

        let mut scaled = grads.clone();
        scale_control(&mut scaled, &control, 0.5);
        assert_eq!(control_sum_of_squares(&scaled, &control, 1.0), 0.25 * want);
        let changed = scaled.iter().zip(&grads).filter(|(a, b)| a != b).count();
        let zeros = control.spans().iter().flat_map(|s| (0..s.rows).map(|r| s.row(r))).flatten();
        let zeros = zeros.filter(|&i| grads[i] == 0.0).count();
        assert_eq!(changed + zeros, 300 * 53 + 90);
    }

    #[test]
    fn rows_are_summed_in_the_documented_order() {
        let grads: Vec<f32> = wave(90_000).iter().map(|g| g * 1.000_123).collect();
        for width in [1, 7, 8, 31, 32, 33, 48, 77] {
            let span = StridedSpan::columns(5, 900, 80, 2..2 + width);
            let control = ControlSpans::new(grads.len(), vec![span]).unwrap();
            let rows: Vec<usize> = (0..900).collect();
            let mut total = 0.0;
            for group in rows.chunks(BLOCK / width) {
                let mut sum = 0.0;
                for &row in group {
                    let mut lanes = [0.0f64; LANES];
                    for (i, &g) in grads[span.row(row)].iter().enumerate() {
                        lanes[i % LANES] += f64::from(g) * f64::from(g);
                    }
                    for half in [16, 8, 4, 2, 1] {
                        for j in 0..half {
                            lanes[j] += lanes[j + half];
                        }
                    }
                    sum += lanes[0];
                }
                total += sum;
            }
            let got = control_sum_of_squares(&grads, &control, 1.0);
            assert_eq!(got.to_bits(), total.to_bits(), "{width}");
        }
    }

    #[test]
    fn the_first_bad_element_is_named() {
        let spans =
            vec![ParamSpan::new("a", 0..BLOCK, true), ParamSpan::new("b", BLOCK + 8..2 * BLOCK, true)];
        let groups = ParamGroups::new(2 * BLOCK, spans).unwrap();
        let mut grads = wave(2 * BLOCK);
        assert_eq!(first_non_finite(&grads, &groups), None);
        assert!(!has_non_finite(&grads));
        grads[2 * BLOCK - 1] = f32::NAN;
        grads[BLOCK + 10] = f32::NEG_INFINITY;
        assert!(has_non_finite(&grads));
        let at = first_non_finite(&grads, &groups).unwrap();
        let want = (Some("b"), 2, BLOCK + 10, f32::NEG_INFINITY);
        assert_eq!((at.name.as_deref(), at.index, at.arena_index, at.value), want);
        grads[BLOCK + 3] = f32::INFINITY;
        let at = first_non_finite(&grads, &groups).unwrap();
        assert_eq!((at.name, at.index), (None, BLOCK + 3));
    }
}
