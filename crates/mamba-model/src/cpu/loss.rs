//! Cross-entropy over rows of logits, in place on the tiles of a row task.

use super::dims::{GROUP, LANES, TILE, fold};
use super::gemm::load;
use super::math;
use pulp::{Arch, Simd, WithSimd};

/// Turns the logits of a row task into their gradient, and reports each row's loss.
pub(super) struct CrossEntropy<'a> {
    /// Tiles of `[rows, columns]`: logits on entry, gradient on return.
    pub logits: &'a mut [f32],
    pub columns: usize,
    /// A negative target does not count: loss and gradient 0.
    pub targets: &'a [i32],
    pub weights: Option<&'a [f32]>,
    /// Factor of the gradient.
    pub grad_scale: f32,
    /// Weight · -log p of each row.
    pub nll: &'a mut [f64],
}

impl CrossEntropy<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }

    /// The pieces of row `r`, 64 columns each but for the last.
    #[inline(always)]
    fn row(&mut self, r: usize) -> impl Iterator<Item = &mut [f32]> {
        let columns = self.columns;
        self.logits.chunks_mut(TILE).enumerate().map(move |(g, tile)| {
            let width = GROUP.min(columns - g * GROUP);
            &mut tile[r * GROUP..][..width]
        })
    }

    /// Largest logit of row `r`; a NaN is passed over here and comes back through the sum.
    #[inline(always)]
    fn max<S: Simd>(&mut self, s: S, r: usize) -> f32 {
        let mut max = s.splat_f32s(f32::NEG_INFINITY);
        let mut top = f32::NEG_INFINITY;
        for piece in self.row(r) {
            let whole = piece.len() / S::F32_LANES;
            for v in 0..whole {
                let x = load::<S>(piece, v);
                max = s.select_f32s(s.greater_than_f32s(x, max), x, max);
            }
            for &x in &piece[whole * S::F32_LANES..] {
                top = if x > top { x } else { top };
            }
        }
        for &x in bytemuck::cast_slice::<S::f32s, f32>(&[max]) {
            top = if x > top { x } else { top };
        }
        top
    }

    /// Replaces row `r` by exp(row - shift) and sums it, 64 columns at a time in f32.
    #[inline(always)]
    fn exponentials<S: Simd>(&mut self, s: S, r: usize, shift: f32) -> f64 {
        let shift = s.splat_f32s(shift);
        let mut total = 0.0f64;
        for piece in self.row(r) {
            let (whole, tail) = S::as_mut_simd_f32s(piece);
            for x in whole {
                *x = math::exp(s, s.sub_f32s(*x, shift));
            }
            if !tail.is_empty() {
                let e = math::exp(s, s.sub_f32s(s.partial_load_f32s(tail), shift));
                s.partial_store_f32s(tail, e);
            }
            // The order does not depend on the width of a vector.
            let (blocks, rest) = piece.as_chunks::<LANES>();
            let mut sums = [0.0; LANES];
            for block in blocks {
                sums.iter_mut().zip(block).for_each(|(sum, e)| *sum += e);
            }
            total += f64::from(fold(&sums)) + rest.iter().map(|&e| f64::from(e)).sum::<f64>();
        }
        total
    }
}

impl WithSimd for CrossEntropy<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        for r in 0..self.nll.len() {
            let Ok(target) = usize::try_from(self.targets[r]) else {
                self.row(r).for_each(|piece| piece.fill(0.0));
                self.nll[r] = 0.0;
                continue;
            };
            let at = target / GROUP * TILE + r * GROUP + target % GROUP;
            let weight = self.weights.map_or(1.0, |w| w[r]);
            let logit = f64::from(self.logits[at]);
            let max = self.max(s, r);
            let sum = self.exponentials(s, r, max);
            self.nll[r] = f64::from(weight) * (libm::log(sum) + f64::from(max) - logit);
            let scale = self.grad_scale * weight;
            let factor = scale / sum as f32;
            self.row(r).flatten().for_each(|p| *p *= factor);
            self.logits[at] -= scale;
        }
    }
}
