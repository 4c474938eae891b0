//! Causal depthwise convolution and silu, with carried samples and document starts.
//!
//! The last d_conv samples of a vector of channels slide through registers, so each sample is loaded once a pass. A
//! document's start clears them: what lies before it counts as zero, as before a fresh sequence.

use super::dims::{Channels, GROUP, ROWS, TILE, channels, tile_row};
use super::gemm::{load, store};
use super::math;
use crate::config::MAX_D_CONV;
use pulp::{Arch, Simd, WithSimd};

/// The width that public models use; it gets registers of its own.
const COMMON: usize = 4;

/// What both directions read. Tokens are those of the whole pass.
#[derive(Clone, Copy)]
pub(super) struct ConvInput<'a> {
    /// Tiled `[x | z]`; the samples are the first `groups` column groups.
    pub xz: &'a [f32],
    /// Samples before the window, `[batch, d_conv - 1, wide]`, oldest first.
    pub history: &'a [f32],
    /// `[batch, seq]`, nonzero at the first token of a document.
    pub reset: &'a [u8],
    /// `[d_conv, wide]` by lag.
    pub taps: &'a [f32],
    pub bias: &'a [f32],
    pub seq: usize,
    pub groups: usize,
}

/// Vector `v` of group `g`, and the taps' vectors by lag.
struct Lane<S: Simd, const N: usize> {
    g: usize,
    v: usize,
    lags: usize,
    taps: [S::f32s; N],
}

/// The last samples (or the next gradients), by distance.
struct Window<S: Simd, const N: usize> {
    by_lag: [S::f32s; N],
    lags: usize,
}

impl<S: Simd, const N: usize> Window<S, N> {
    #[inline(always)]
    fn new(s: S, lags: usize) -> Self {
        Self { by_lag: [s.splat_f32s(0.0); N], lags }
    }

    #[inline(always)]
    fn push(&mut self, x: S::f32s) {
        for lag in (1..self.lags).rev() {
            self.by_lag[lag] = self.by_lag[lag - 1];
        }
        self.by_lag[0] = x;
    }

    #[inline(always)]
    fn clear(&mut self, s: S) {
        for x in &mut self.by_lag[..self.lags] {
            *x = s.splat_f32s(0.0);
        }
    }
}

impl<'a> ConvInput<'a> {
    fn lags(&self) -> usize {
        self.taps.len() / (self.groups * GROUP)
    }

    #[inline(always)]
    fn lane<S: Simd, const N: usize>(&self, s: S, lags: usize, g: usize, v: usize) -> Lane<S, N> {
        let mut taps = [s.splat_f32s(0.0); N];
        for (lag, tap) in taps.iter_mut().enumerate().take(lags) {
            *tap = load::<S>(channels(self.taps, (lag * self.groups + g) * GROUP), v);
        }
        Lane { g, v, lags, taps }
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

    /// What token `m` sees of the tokens before it.
    #[inline(always)]
    fn window_before<S: Simd, const N: usize>(&self, s: S, m: usize, lane: &Lane<S, N>) -> Window<S, N> {
        let (b, t) = (m / self.seq, (m % self.seq) as isize);
        let mut window = Window::new(s, lane.lags);
        for t in t + 1 - lane.lags as isize..t {
            if usize::try_from(t).is_ok_and(|t| self.reset[b * self.seq + t] != 0) {
                window.clear(s);
            }
            window.push(load::<S>(self.sample(b, t, lane.g), lane.v));
        }
        window
    }

    /// Calls `f` with each of the rows of row task `task`, in order, and the convolution and samples there.
    #[inline(always)]
    fn each_row<S: Simd, const N: usize>(
        &self,
        s: S,
        (task, rows): (usize, usize),
        lane: &Lane<S, N>,
        mut f: impl FnMut(usize, S::f32s, &Window<S, N>),
    ) {
        let first = task * ROWS;
        let bias = load::<S>(channels(self.bias, lane.g * GROUP), lane.v);
        let tile = &self.xz[tile_row(first, lane.g, 2 * self.groups)..][..TILE];
        let resets = &self.reset[first..first + rows];
        let mut window = self.window_before(s, first, lane);
        let mut next_row = (first / self.seq + 1) * self.seq;
        for ((r, x), &reset) in tile.as_chunks::<GROUP>().0.iter().enumerate().zip(resets) {
            if first + r == next_row {
                window = self.window_before(s, next_row, lane);
                next_row += self.seq;
            }
            if reset != 0 {
                window.clear(s);
            }
            window.push(load::<S>(x, lane.v));
            let mut acc = bias;
            for lag in (0..lane.lags).rev() {
                acc = s.mul_add_f32s(lane.taps[lag], window.by_lag[lag], acc);
            }
            f(r, acc, &window);
        }
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

    #[inline(always)]
    fn lanes<S: Simd, const N: usize>(self, s: S, lags: usize) {
        for (g, tile) in self.u.chunks_exact_mut(TILE).enumerate() {
            let u = tile.as_chunks_mut::<GROUP>().0;
            for v in 0..GROUP / S::F32_LANES {
                let lane = self.input.lane::<S, N>(s, lags, g, v);
                self.input.each_row(s, (self.task, self.rows), &lane, |r, pre, _| {
                    store::<S>(&mut u[r], v, math::silu(s, pre));
                });
            }
        }
    }
}

impl WithSimd for ConvFwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        match self.input.lags() {
            COMMON => self.lanes::<S, COMMON>(s, COMMON),
            lags => self.lanes::<S, MAX_D_CONV>(s, lags),
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

    #[inline(always)]
    fn lanes<S: Simd, const N: usize>(self, s: S, lags: usize) {
        let zero = s.splat_f32s(0.0);
        let wide = self.input.groups * GROUP;
        for (g, tile) in self.d.chunks_exact_mut(TILE).enumerate() {
            let d = tile.as_chunks_mut::<GROUP>().0;
            for v in 0..GROUP / S::F32_LANES {
                let lane = self.input.lane::<S, N>(s, lags, g, v);
                let (mut taps, mut bias) = ([zero; N], zero);
                self.input.each_row(s, (self.task, self.rows), &lane, |r, pre, window| {
                    let dc = s.mul_f32s(load::<S>(&d[r], v), math::silu_with_slope(s, pre).1);
                    store::<S>(&mut d[r], v, dc);
                    for (tap, &x) in taps[..lags].iter_mut().zip(&window.by_lag) {
                        *tap = s.mul_add_f32s(dc, x, *tap);
                    }
                    bias = s.add_f32s(bias, dc);
                });
                for (lag, &sum) in taps[..lags].iter().chain([&bias]).enumerate() {
                    store::<S>(&mut self.sums[lag * wide + g * GROUP..][..GROUP], v, sum);
                }
            }
        }
    }
}

impl WithSimd for ConvBwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        match self.input.lags() {
            COMMON => self.lanes::<S, COMMON>(s, COMMON),
            lags => self.lanes::<S, MAX_D_CONV>(s, lags),
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

    #[inline(always)]
    fn lanes<S: Simd, const N: usize>(self, s: S, lags: usize) {
        let ConvInput { reset, seq, groups, .. } = self.input;
        let first = self.task * ROWS;
        let end = first + self.rows;
        let behind = (end + lags - 1).min(reset.len());
        for g in 0..groups {
            let dx = self.dx[g * TILE..][..TILE].as_chunks_mut::<GROUP>().0;
            for v in 0..GROUP / S::F32_LANES {
                let lane = self.input.lane::<S, N>(s, lags, g, v);
                let mut window = Window::<S, N>::new(s, lags);
                let mut row_start = (behind - 1) / seq * seq;
                for m in (first..behind).rev() {
                    // Nothing from the next batch row on, nor from the next document on, reaches back.
                    let new_row = m + 1 == row_start;
                    if new_row || (m + 1 < behind && reset[m + 1] != 0) {
                        window.clear(s);
                    }
                    if new_row {
                        row_start -= seq;
                    }
                    window.push(load::<S>(channels(self.dc, tile_row(m, g, groups)), v));
                    if m < end {
                        let mut acc = s.splat_f32s(0.0);
                        for lag in 0..lags {
                            acc = s.mul_add_f32s(lane.taps[lag], window.by_lag[lag], acc);
                        }
                        store::<S>(&mut dx[m - first], v, acc);
                    }
                }
            }
        }
    }
}

impl WithSimd for ConvInputGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        match self.input.lags() {
            COMMON => self.lanes::<S, COMMON>(s, COMMON),
            lags => self.lanes::<S, MAX_D_CONV>(s, lags),
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
