//! Causal depthwise convolution and silu, with carried samples and document starts.

use super::gemm::{load, store};
use super::math;
use crate::config::MAX_D_CONV;
use pulp::{Arch, Simd, WithSimd};

/// What both directions read. Rows are tokens of the whole pass.
#[derive(Clone, Copy)]
pub(super) struct ConvInput<'a> {
    /// Samples, rows of stride `2 · width`.
    pub x: &'a [f32],
    /// Samples before the window, `[batch, d_conv - 1, width]`, oldest first.
    pub history: &'a [f32],
    /// Samples back that each token may see: less than d_conv - 1 shortly after a document's start.
    pub reach: &'a [u8],
    /// `[d_conv, width]` by lag.
    pub taps: &'a [f32],
    pub bias: &'a [f32],
    pub seq: usize,
    pub width: usize,
}

impl<'a> ConvInput<'a> {
    fn lags(&self) -> usize {
        self.taps.len() / self.width
    }

    /// The samples that row `m` sees, by lag.
    #[inline(always)]
    fn samples(&self, m: usize) -> ([&'a [f32]; MAX_D_CONV], usize) {
        let (b, t) = (m / self.seq, m % self.seq);
        let reach = usize::from(self.reach[m]);
        let back = self.lags() - 1;
        let mut samples: [&[f32]; MAX_D_CONV] = [&[]; MAX_D_CONV];
        for (lag, out) in samples.iter_mut().take(reach + 1).enumerate() {
            *out = match t.checked_sub(lag) {
                Some(_) => &self.x[(m - lag) * 2 * self.width..][..self.width],
                None => &self.history[(b * back + back + t - lag) * self.width..][..self.width],
            };
        }
        (samples, reach)
    }

    /// Vector `v` of the convolution, oldest sample first.
    #[inline(always)]
    fn pre<S: Simd>(&self, s: S, samples: &[&[f32]], v: usize) -> S::f32s {
        let mut acc = load::<S>(self.bias, v);
        for (lag, x) in samples.iter().enumerate().rev() {
            let tap = load::<S>(&self.taps[lag * self.width..][..self.width], v);
            acc = s.mul_add_f32s(tap, load::<S>(x, v), acc);
        }
        acc
    }
}

/// u = silu(conv(x)) for rows `first..`, as many as `u` holds.
pub(super) struct ConvFwd<'a> {
    pub input: ConvInput<'a>,
    pub first: usize,
    pub u: &'a mut [f32],
}

impl ConvFwd<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for ConvFwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let input = self.input;
        for (i, u) in self.u.chunks_exact_mut(input.width).enumerate() {
            let (samples, reach) = input.samples(self.first + i);
            for v in 0..input.width / S::F32_LANES {
                let pre = input.pre(s, &samples[..=reach], v);
                store::<S>(u, v, math::silu(s, pre));
            }
        }
    }
}

/// dc = du · silu'(c), and the sums of the taps' and the bias' gradients over these rows.
pub(super) struct ConvBwd<'a> {
    pub input: ConvInput<'a>,
    pub first: usize,
    /// du on entry, dc on return.
    pub d: &'a mut [f32],
    /// `[d_conv + 1, width]`, overwritten: taps by lag, then the bias.
    pub sums: &'a mut [f32],
}

impl ConvBwd<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for ConvBwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let input = self.input;
        let width = input.width;
        self.sums.fill(0.0);
        for (i, d) in self.d.chunks_exact_mut(width).enumerate() {
            let (samples, reach) = input.samples(self.first + i);
            for v in 0..width / S::F32_LANES {
                let pre = input.pre(s, &samples[..=reach], v);
                let dc = s.mul_f32s(load::<S>(d, v), math::silu_with_slope(s, pre).1);
                store::<S>(d, v, dc);
                for (lag, x) in samples[..=reach].iter().enumerate() {
                    let sum = &mut self.sums[lag * width..][..width];
                    let next = s.mul_add_f32s(dc, load::<S>(x, v), load::<S>(sum, v));
                    store::<S>(sum, v, next);
                }
                let sum = &mut self.sums[input.lags() * width..][..width];
                let next = s.add_f32s(load::<S>(sum, v), dc);
                store::<S>(sum, v, next);
            }
        }
    }
}

/// dx_t = Σ_lag tap[lag] · dc_{t+lag} for rows `first..`; writes the x half of rows of stride `2 · width`.
pub(super) struct ConvInputGrad<'a> {
    pub input: ConvInput<'a>,
    pub first: usize,
    /// dc of the whole pass, rows of stride `width`.
    pub dc: &'a [f32],
    pub dx: &'a mut [f32],
}

impl ConvInputGrad<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for ConvInputGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let ConvInput { reach, taps, seq, width, .. } = self.input;
        for (i, dx) in self.dx.chunks_exact_mut(2 * width).enumerate() {
            let m = self.first + i;
            let left = seq - m % seq;
            let mut later: [(&[f32], &[f32]); MAX_D_CONV] = [(&[], &[]); MAX_D_CONV];
            let mut count = 0;
            for lag in 0..self.input.lags().min(left) {
                if usize::from(reach[m + lag]) >= lag {
                    let dc = &self.dc[(m + lag) * width..][..width];
                    later[count] = (&taps[lag * width..][..width], dc);
                    count += 1;
                }
            }
            for v in 0..width / S::F32_LANES {
                let mut acc = s.splat_f32s(0.0);
                for (tap, dc) in &later[..count] {
                    acc = s.mul_add_f32s(load::<S>(tap, v), load::<S>(dc, v), acc);
                }
                store::<S>(&mut dx[..width], v, acc);
            }
        }
    }
}

/// The last d_conv - 1 samples of each row's document, `[d_inner, d_conv - 1]`, oldest first.
pub(super) fn state_out(input: &ConvInput<'_>, b: usize, last_start: Option<usize>, out: &mut [f32]) {
    let back = input.lags() - 1;
    if back == 0 {
        return;
    }
    for (i, age) in (1..=back).rev().enumerate() {
        // Sample `age` steps before the next window.
        let sample = match input.seq.checked_sub(age) {
            Some(t) if last_start.is_none_or(|s| t >= s) => {
                Some(&input.x[(b * input.seq + t) * 2 * input.width..])
            }
            None if last_start.is_none() => {
                Some(&input.history[(b * back + back + input.seq - age) * input.width..])
            }
            _ => None,
        };
        for (c, row) in out.chunks_exact_mut(back).enumerate() {
            row[i] = sample.map_or(0.0, |x| x[c]);
        }
    }
}
