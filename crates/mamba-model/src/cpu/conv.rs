//! Causal depthwise convolution and silu, with carried samples and document starts.

use super::dims::{Channels, GROUP, ROWS, TILE, channels, tile_row};
use super::gemm::{load, store};
use super::math;
use crate::config::MAX_D_CONV;
use pulp::{Arch, Simd, WithSimd};

/// What both directions read. Tokens are those of the whole pass.
#[derive(Clone, Copy)]
pub(super) struct ConvInput<'a> {
    /// Tiled `[x | z]`; the samples are the first `groups` column groups.
    pub xz: &'a [f32],
    /// Samples before the window, `[batch, d_conv - 1, wide]`, oldest first.
    pub history: &'a [f32],
    /// Samples back that each token may see: less than d_conv - 1 shortly after a document's start.
    pub reach: &'a [u8],
    /// `[d_conv, wide]` by lag.
    pub taps: &'a [f32],
    pub bias: &'a [f32],
    pub seq: usize,
    pub groups: usize,
}

/// The samples that a token sees, by lag.
struct Samples<'a> {
    by_lag: [&'a Channels; MAX_D_CONV],
    count: usize,
}

impl<'a> ConvInput<'a> {
    fn lags(&self) -> usize {
        self.taps.len() / (self.groups * GROUP)
    }

    fn tap(&self, lag: usize, g: usize) -> &'a Channels {
        channels(self.taps, (lag * self.groups + g) * GROUP)
    }

    /// Sample of token `t` of batch row `b`; negative times lie in the history.
    #[inline(always)]
    fn sample(&self, b: usize, t: isize, g: usize) -> &'a Channels {
        match usize::try_from(t) {
            Ok(t) => channels(self.xz, tile_row(b * self.seq + t, g, 2 * self.groups)),
            Err(_) => {
                let back = self.lags() - 1;
                let slot = b * back + back - t.unsigned_abs();
                channels(self.history, (slot * self.groups + g) * GROUP)
            }
        }
    }

    #[inline(always)]
    fn samples(&self, m: usize, g: usize) -> Samples<'a> {
        let (b, t) = (m / self.seq, m % self.seq);
        let count = usize::from(self.reach[m]) + 1;
        let mut by_lag = [const { &[0.0; GROUP] }; MAX_D_CONV];
        for (lag, out) in by_lag.iter_mut().take(count).enumerate() {
            *out = self.sample(b, t as isize - lag as isize, g);
        }
        Samples { by_lag, count }
    }

    /// Vector `v` of the convolution, oldest sample first.
    #[inline(always)]
    fn pre<S: Simd>(&self, s: S, samples: &Samples<'_>, g: usize, v: usize) -> S::f32s {
        let mut acc = load::<S>(channels(self.bias, g * GROUP), v);
        for lag in (0..samples.count).rev() {
            acc = s.mul_add_f32s(load::<S>(self.tap(lag, g), v), load::<S>(samples.by_lag[lag], v), acc);
        }
        acc
    }
}

/// u = silu(conv(x)) for the rows of row task `task`.
pub(super) struct ConvFwd<'a> {
    pub input: ConvInput<'a>,
    pub task: usize,
    pub rows: usize,
    /// Tiles of the row task.
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
        for (g, tile) in self.u.chunks_exact_mut(TILE).enumerate() {
            for (r, u) in tile.chunks_exact_mut(GROUP).take(self.rows).enumerate() {
                let samples = input.samples(self.task * ROWS + r, g);
                for v in 0..GROUP / S::F32_LANES {
                    store::<S>(u, v, math::silu(s, input.pre(s, &samples, g, v)));
                }
            }
        }
    }
}

/// dc = du · silu'(c), and the sums of the taps' and the bias' gradients over the rows of a row task.
pub(super) struct ConvBwd<'a> {
    pub input: ConvInput<'a>,
    pub task: usize,
    pub rows: usize,
    /// Tiles of the row task: du on entry, dc on return.
    pub d: &'a mut [f32],
    /// `[d_conv + 1, wide]`, overwritten: taps by lag, then the bias.
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
        let (wide, lags) = (input.groups * GROUP, input.lags());
        self.sums.fill(0.0);
        for (g, tile) in self.d.chunks_exact_mut(TILE).enumerate() {
            for (r, d) in tile.chunks_exact_mut(GROUP).take(self.rows).enumerate() {
                let samples = input.samples(self.task * ROWS + r, g);
                for v in 0..GROUP / S::F32_LANES {
                    let slope = math::silu_with_slope(s, input.pre(s, &samples, g, v)).1;
                    let dc = s.mul_f32s(load::<S>(d, v), slope);
                    store::<S>(d, v, dc);
                    for lag in 0..samples.count {
                        let sum = &mut self.sums[lag * wide + g * GROUP..][..GROUP];
                        let x = load::<S>(samples.by_lag[lag], v);
                        let next = s.mul_add_f32s(dc, x, load::<S>(sum, v));
                        store::<S>(sum, v, next);
                    }
                    let sum = &mut self.sums[lags * wide + g * GROUP..][..GROUP];
                    let next = s.add_f32s(load::<S>(sum, v), dc);
                    store::<S>(sum, v, next);
                }
            }
        }
    }
}

/// dx_t = Σ_lag tap[lag] · dc_{t+lag} for the rows of row task `task`.
pub(super) struct ConvInputGrad<'a> {
    pub input: ConvInput<'a>,
    pub task: usize,
    pub rows: usize,
    /// dc of the whole pass, tiled.
    pub dc: &'a [f32],
    /// Tiles of the row task.
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
        let ConvInput { reach, seq, groups, .. } = self.input;
        for (g, tile) in self.dx.chunks_exact_mut(TILE).enumerate().take(groups) {
            for (r, dx) in tile.chunks_exact_mut(GROUP).take(self.rows).enumerate() {
                let m = self.task * ROWS + r;
                let mut later = [const { (&[0.0; GROUP], &[0.0; GROUP]) }; MAX_D_CONV];
                let mut count = 0;
                for lag in 0..self.input.lags().min(seq - m % seq) {
                    if usize::from(reach[m + lag]) >= lag {
                        let dc = channels(self.dc, tile_row(m + lag, g, groups));
                        later[count] = (self.input.tap(lag, g), dc);
                        count += 1;
                    }
                }
                for v in 0..GROUP / S::F32_LANES {
                    let mut acc = s.splat_f32s(0.0);
                    for (tap, dc) in &later[..count] {
                        acc = s.mul_add_f32s(load::<S>(*tap, v), load::<S>(*dc, v), acc);
                    }
                    store::<S>(dx, v, acc);
                }
            }
        }
    }
}

/// The last d_conv - 1 samples of batch row `b`'s document, `[d_inner, d_conv - 1]`, oldest first; zeros before its
/// start.
pub(super) fn state_out(input: &ConvInput<'_>, b: usize, last_start: Option<usize>, out: &mut [f32]) {
    let back = input.lags() - 1;
    if back == 0 {
        return;
    }
    let zeros = &[0.0; GROUP];
    for (g, out) in out.chunks_mut(GROUP * back).enumerate() {
        for i in 0..back {
            let t = input.seq as isize - (back - i) as isize;
            let inside = last_start.is_none_or(|start| t >= start as isize);
            let sample = if inside { input.sample(b, t, g) } else { zeros };
            for (row, &x) in out.chunks_exact_mut(back).zip(sample) {
                row[i] = x;
            }
        }
    }
}

/// The carried samples `[batch, d_inner, d_conv - 1]`, a token after the other.
pub(super) fn load_history(conv: &[f32], d_inner: usize, back: usize, wide: usize, history: &mut [f32]) {
    if back == 0 {
        return;
    }
    let rows = conv.chunks_exact(d_inner * back).zip(history.chunks_exact_mut(back * wide));
    for (conv, history) in rows {
        for (c, samples) in conv.chunks_exact(back).enumerate() {
            for (i, &x) in samples.iter().enumerate() {
                history[i * wide + c] = x;
            }
        }
    }
}
