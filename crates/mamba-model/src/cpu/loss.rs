//! Cross-entropy over rows of logits, in place.

use super::gemm::{load, store};
use super::math;
use pulp::{Arch, Simd, WithSimd};

/// Vectors whose exponentials are summed in f32 before they join the f64 sum.
const F32_SUM: usize = 64;

/// Turns rows of logits into their gradient, and reports each row's loss.
pub(super) struct CrossEntropy<'a> {
    /// `[rows, columns]`: logits on entry, gradient on return.
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
}

impl WithSimd for CrossEntropy<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        for (i, row) in self.logits.chunks_exact_mut(self.columns).enumerate() {
            let Ok(target) = usize::try_from(self.targets[i]) else {
                row.fill(0.0);
                self.nll[i] = 0.0;
                continue;
            };
            let weight = self.weights.map_or(1.0, |w| w[i]);
            let logit = f64::from(row[target]);
            let (max, sum) = exponentials(s, row);
            self.nll[i] = f64::from(weight) * (libm::log(sum) + f64::from(max) - logit);
            let scale = self.grad_scale * weight;
            let factor = scale / sum as f32;
            row.iter_mut().for_each(|p| *p *= factor);
            row[target] -= scale;
        }
    }
}

/// Replaces a row by exp(row - max); gives max and the sum.
#[inline(always)]
fn exponentials<S: Simd>(s: S, row: &mut [f32]) -> (f32, f64) {
    let whole = row.len() - row.len() % S::F32_LANES;
    let (body, tail) = row.split_at_mut(whole);
    let mut max = s.splat_f32s(f32::NEG_INFINITY);
    for i in 0..whole / S::F32_LANES {
        let x = load::<S>(body, i);
        max = s.select_f32s(s.greater_than_f32s(x, max), x, max);
    }
    // A NaN logit is passed over here and comes back through the sum.
    let mut top = f32::NEG_INFINITY;
    for &x in bytemuck::cast_slice::<S::f32s, f32>(&[max]).iter().chain(&*tail) {
        top = if x > top { x } else { top };
    }
    let shift = s.splat_f32s(top);
    let mut sum = 0.0f64;
    for chunk in body.chunks_mut(F32_SUM * S::F32_LANES) {
        let mut part = s.splat_f32s(0.0);
        for i in 0..chunk.len() / S::F32_LANES {
            let e = math::exp(s, s.sub_f32s(load::<S>(chunk, i), shift));
            store::<S>(chunk, i, e);
            part = s.add_f32s(part, e);
        }
        sum += bytemuck::cast_slice::<S::f32s, f32>(&[part]).iter().map(|&x| f64::from(x)).sum::<f64>();
    }
    let e = math::exp(s, s.sub_f32s(s.partial_load_f32s(tail), shift));
    s.partial_store_f32s(tail, e);
    (top, sum + tail.iter().map(|&x| f64::from(x)).sum::<f64>())
}
