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

use pulp::Arch;
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
        return arch.dispatch(|| block_sum(grads, factor));
    }
    let partial: Vec<f64> =
        grads.par_chunks(BLOCK).map(|block| arch.dispatch(|| block_sum(block, factor))).collect();
    partial.iter().sum()
}

/// L2 norm of a gradient arena; non-finite exactly if an element is.
pub fn global_norm(grads: &[f32]) -> f64 {
    sum_of_squares(grads, 1.0).sqrt()
}

/// [`sum_of_squares`] over control spans: each row is a sum of its own, cut into blocks if it is long; rows are
/// added in order in groups of about [`BLOCK`] elements, groups in order. The spans must lie inside `grads`.
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
                arch.dispatch(|| rows.map(|r| block_sum(&grads[span.row(r)], factor)).sum::<f64>())
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
    let one = |block: &mut [f32]| {
        arch.dispatch(|| {
            for g in block {
                *g *= factor;
            }
        });
    };
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
        return arch.dispatch(|| block_has_non_finite(grads));
    }
    grads.par_chunks(BLOCK).any(|block| arch.dispatch(|| block_has_non_finite(block)))
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
    let block = grads.par_chunks(BLOCK).position_first(|b| arch.dispatch(|| block_has_non_finite(b)))?;
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

#[inline(always)]
fn block_sum(block: &[f32], factor: f32) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let (whole, rest) = block.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, &g) in lanes.iter_mut().zip(chunk) {
            let x = f64::from(g * factor);
            *lane += x * x;
        }
    }
    for (lane, &g) in lanes.iter_mut().zip(rest) {
        let x = f64::from(g * factor);
        *lane += x * x;
    }
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
fn block_has_non_finite(block: &[f32]) -> bool {
    let mut found = 0u32;
    for g in block {
        // All exponent bits set: Inf or NaN.
        found |= u32::from(g.to_bits() & 0x7f80_0000 == 0x7f80_0000);
    }
    found != 0
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
