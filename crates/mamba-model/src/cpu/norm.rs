//! RMSNorm over rows, y = x / sqrt(mean(x²) + eps) · w. Sums are taken in f64, so no finite row overflows.

use super::gemm::Layout;
use pulp::{Arch, Simd, WithSimd};

const F64_LANES: usize = 8;

#[inline(always)]
fn sum(dim: usize, term: impl Fn(usize) -> f64) -> f64 {
    let mut acc = [0.0f64; F64_LANES];
    let whole = dim - dim % F64_LANES;
    for i in (0..whole).step_by(F64_LANES) {
        for (l, a) in acc.iter_mut().enumerate() {
            *a += term(i + l);
        }
    }
    let mut total = acc.iter().sum::<f64>();
    for i in whole..dim {
        total += term(i);
    }
    total
}

/// `y` and the reciprocal root `rstd` of every row of `x`.
pub(super) struct NormFwd<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub eps: f64,
    pub y: &'a mut [f32],
    pub layout: Layout,
    pub rstd: &'a mut [f32],
}

impl NormFwd<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for NormFwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let dim = self.weight.len();
        for (r, (x, rstd)) in self.x.chunks_exact(dim).zip(self.rstd).enumerate() {
            let squares = sum(dim, |i| f64::from(x[i]) * f64::from(x[i]));
            *rstd = (1.0 / (squares / dim as f64 + self.eps).sqrt()) as f32;
            scale_row(x, *rstd, self.weight, self.y, self.layout, r);
        }
    }
}

#[inline(always)]
fn scale_row(x: &[f32], rstd: f32, weight: &[f32], y: &mut [f32], layout: Layout, r: usize) {
    let mut done = 0;
    layout.pieces_mut(y, r, x.len(), |y| {
        let terms = x[done..].iter().zip(&weight[done..]);
        for (y, (&x, &w)) in y.iter_mut().zip(terms) {
            *y = x * rstd * w;
        }
        done += y.len();
    });
}

/// The normalised rows again, from the kept `rstd`; same bits as [`NormFwd`].
pub(super) struct NormAgain<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub rstd: &'a [f32],
    pub y: &'a mut [f32],
    pub layout: Layout,
}

impl NormAgain<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for NormAgain<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let dim = self.weight.len();
        for (r, (x, &rstd)) in self.x.chunks_exact(dim).zip(self.rstd).enumerate() {
            scale_row(x, rstd, self.weight, self.y, self.layout, r);
        }
    }
}

/// dx = rstd · (w·dy - x̂ · mean(w·dy·x̂)) with x̂ = x·rstd; dw = Σ dy·x̂ over the rows.
pub(super) struct NormBwd<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub rstd: &'a [f32],
    pub dy: &'a [f32],
    /// Added to where `accumulate`, else overwritten.
    pub dx: &'a mut [f32],
    pub accumulate: bool,
    /// Overwritten with the sum over these rows.
    pub d_weight: &'a mut [f32],
}

impl NormBwd<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for NormBwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (w, dim) = (self.weight, self.weight.len());
        self.d_weight.fill(0.0);
        let inputs = self.x.chunks_exact(dim).zip(self.dy.chunks_exact(dim)).zip(self.rstd);
        for (((x, dy), &rstd), dx) in inputs.zip(self.dx.chunks_exact_mut(dim)) {
            let dot = sum(dim, |i| f64::from(w[i] * dy[i]) * f64::from(x[i]));
            let r = f64::from(rstd);
            let along = (dot * r * r * r / dim as f64) as f32;
            let terms = x.iter().zip(dy).zip(w);
            if self.accumulate {
                for (dx, ((&x, &dy), &w)) in dx.iter_mut().zip(terms) {
                    *dx += rstd * (w * dy) - x * along;
                }
            } else {
                for (dx, ((&x, &dy), &w)) in dx.iter_mut().zip(terms) {
                    *dx = rstd * (w * dy) - x * along;
                }
            }
            for (dw, (&x, &dy)) in self.d_weight.iter_mut().zip(x.iter().zip(dy)) {
                *dw += dy * (x * rstd);
            }
        }
    }
}
