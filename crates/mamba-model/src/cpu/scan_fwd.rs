//! Selective scan, forward: h = exp(Δ·A)·h + Δ·u·B; y = (Σ h·C + D·u)·silu(z).
//!
//! Lanes are channels: a block of 16 channels keeps one vector a state, B and C of a token are broadcast. States go
//! in quads, a chunk of tokens at a time, so the quad's h stays in registers along the chunk.

use super::derived::LayerWeights;
use super::dims::{CHUNK, Dims, GROUP, LANES, Lanes, QUAD, TILE, lanes, tile_row};
use super::gemm::{load, store};
use super::math;
use pulp::{Arch, Simd, WithSimd};

/// What both directions read. Token buffers cover the whole pass and are tiled, but for `q`.
#[derive(Clone, Copy)]
pub(super) struct ScanInput<'a> {
    pub dims: &'a Dims,
    pub weights: &'a LayerWeights,
    pub u: &'a [f32],
    pub delta: &'a [f32],
    /// `[x | z]`.
    pub xz: &'a [f32],
    /// Rows of `q_cols`: dt, B, C.
    pub q: &'a [f32],
    /// `[batch, seq]`, nonzero at the first token of a document.
    pub reset: &'a [u8],
    pub batch: usize,
    pub group: usize,
}

/// B and C of a chunk, by quad and token.
#[derive(Debug)]
pub(super) struct Quads {
    pub b: Vec<[f32; QUAD]>,
    pub c: Vec<[f32; QUAD]>,
}

impl Quads {
    pub fn new(states: usize) -> Self {
        let zeros = vec![[0.0; QUAD]; states / QUAD * CHUNK];
        Self { b: zeros.clone(), c: zeros }
    }

    pub fn len(&self) -> usize {
        2 * QUAD * self.b.len()
    }
}

impl<'a> ScanInput<'a> {
    /// Row of the chunk's first token.
    pub fn row(&self, t: usize) -> usize {
        self.batch * self.dims.seq + t
    }

    /// First channel of block `k` of the group.
    pub fn channel(&self, k: usize) -> usize {
        self.group * GROUP + k * LANES
    }

    /// A · log2 e of block `k`, `[states]`.
    pub fn a2(&self, k: usize) -> &'a [Lanes] {
        &self.weights.a2[self.channel(k) / LANES * self.dims.states..][..self.dims.states]
    }

    /// Document starts of a chunk.
    pub fn resets(&self, t: usize, len: usize) -> &'a [u8] {
        &self.reset[self.row(t)..][..len]
    }

    /// Block `k` of token `t` in a tiled buffer of d_inner columns.
    #[inline(always)]
    pub fn tile(&self, x: &'a [f32], t: usize, k: usize) -> &'a Lanes {
        lanes(x, tile_row(self.row(t), self.group, self.dims.groups) + k * LANES)
    }

    /// z of block `k` of token `t`.
    #[inline(always)]
    pub fn gate(&self, t: usize, k: usize) -> &'a Lanes {
        let groups = self.dims.groups;
        lanes(self.xz, tile_row(self.row(t), groups + self.group, 2 * groups) + k * LANES)
    }

    /// Copies B and C of `len` tokens from `t` on.
    #[inline(always)]
    pub fn stage_quads(&self, t: usize, len: usize, quads: &mut Quads) {
        let d = self.dims;
        for i in 0..len {
            let q = &self.q[(self.row(t) + i) * d.q_cols + d.dt_rank..][..2 * d.d_state];
            let (b, c) = q.split_at(d.d_state);
            for (out, src) in [(&mut quads.b, b), (&mut quads.c, c)] {
                for (n, src) in src.chunks(QUAD).enumerate() {
                    out[n * CHUNK + i][..src.len()].copy_from_slice(src);
                }
            }
        }
    }
}

/// Δ = softplus(raw + bias), in place on the tiles of a row task.
pub(super) struct StepSize<'a> {
    pub tiles: &'a mut [f32],
    pub rows: usize,
    pub bias: &'a [f32],
    pub dims: &'a Dims,
}

impl StepSize<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }
}

impl WithSimd for StepSize<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        for (g, tile) in self.tiles.chunks_exact_mut(TILE).enumerate() {
            let (bias, blocks) = (&self.bias[g * GROUP..][..GROUP], self.dims.blocks(g));
            for row in tile.chunks_exact_mut(GROUP).take(self.rows) {
                for v in 0..blocks * LANES / S::F32_LANES {
                    let raw = s.add_f32s(load::<S>(row, v), load::<S>(bias, v));
                    store::<S>(row, v, math::softplus(s, raw));
                }
            }
        }
    }
}

/// One (batch row, group) of the forward scan.
pub(super) struct ScanFwd<'a> {
    pub input: ScanInput<'a>,
    /// State before the window, `[d_inner, d_state]` of this batch row.
    pub h_in: &'a [f32],
    /// State after the window, `[block, states, lanes]`.
    pub h: &'a mut [f32],
    /// State before each chunk, `[chunk, block, states, lanes]`, where it is kept.
    pub kept: Option<&'a mut [f32]>,
    /// Gated output `[seq, 64]`.
    pub y: &'a mut [f32],
    pub quads: &'a mut Quads,
}

/// A block's values along a chunk.
struct Stage<S: Simd> {
    delta: [S::f32s; CHUNK],
    du: [S::f32s; CHUNK],
    y: [S::f32s; CHUNK],
}

impl ScanFwd<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }

    /// Transposes the carried state in.
    fn load_state(&mut self) {
        let d = self.input.dims;
        self.h.fill(0.0);
        let first = self.input.channel(0);
        for c in first..d.d_inner.min(first + GROUP) {
            let (block, lane) = ((c - first) / LANES, (c - first) % LANES);
            for (n, &h) in self.h_in[c * d.d_state..][..d.d_state].iter().enumerate() {
                self.h[(block * d.states + n) * LANES + lane] = h;
            }
        }
    }

    #[inline(always)]
    fn block<S: Simd>(
        &mut self,
        s: S,
        st: &mut Stage<S>,
        (k, sub): (usize, usize),
        (t, len): (usize, usize),
    ) {
        let input = &self.input;
        let skip = load::<S>(lanes(&input.weights.skip, input.channel(k)), sub);
        for i in 0..len {
            let u = load::<S>(input.tile(input.u, t + i, k), sub);
            st.delta[i] = load::<S>(input.tile(input.delta, t + i, k), sub);
            st.du[i] = s.mul_f32s(st.delta[i], u);
            st.y[i] = s.mul_f32s(skip, u);
        }
        for n in (0..input.dims.states).step_by(QUAD) {
            self.quad(s, st, (k, n, sub), (t, len));
        }
        for (i, &y) in st.y.iter().enumerate().take(len) {
            let gate = math::silu(s, load::<S>(self.input.gate(t + i, k), sub));
            let out = &mut self.y[(t + i) * GROUP + k * LANES..][..LANES];
            store::<S>(out, sub, s.mul_f32s(y, gate));
        }
    }

    #[inline(always)]
    fn quad<S: Simd>(
        &mut self,
        s: S,
        st: &mut Stage<S>,
        (k, n, sub): (usize, usize, usize),
        (t, len): (usize, usize),
    ) {
        let zero = s.splat_f32s(0.0);
        let resets = self.input.resets(t, len);
        let a2 = &self.input.a2(k)[n..][..QUAD];
        let rows = &mut self.h[(k * self.input.dims.states + n) * LANES..][..QUAD * LANES];
        let b = &self.quads.b[n / QUAD * CHUNK..][..CHUNK];
        let c = &self.quads.c[n / QUAD * CHUNK..][..CHUNK];
        let mut h: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(lanes(rows, j * LANES), sub));
        let a2: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&a2[j], sub));
        for i in 0..len {
            if resets[i] != 0 {
                h = [zero; QUAD];
            }
            let (delta, du) = (st.delta[i], st.du[i]);
            let mut y = st.y[i];
            for j in 0..QUAD {
                let decay = math::exp2_nonpositive(s, s.mul_f32s(delta, a2[j]));
                h[j] = s.mul_add_f32s(decay, h[j], s.mul_f32s(du, s.splat_f32s(b[i][j])));
                y = s.mul_add_f32s(h[j], s.splat_f32s(c[i][j]), y);
            }
            st.y[i] = y;
        }
        for (j, &h) in h.iter().enumerate() {
            store::<S>(&mut rows[j * LANES..][..LANES], sub, h);
        }
    }
}

impl WithSimd for ScanFwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        let d = self.input.dims;
        let zeros = [s.splat_f32s(0.0); CHUNK];
        let mut st: Stage<S> = Stage { delta: zeros, du: zeros, y: zeros };
        self.load_state();
        for (chunk, t) in (0..d.seq).step_by(CHUNK).enumerate() {
            let len = CHUNK.min(d.seq - t);
            if let Some(kept) = &mut self.kept {
                kept[chunk * d.group_state()..][..d.group_state()].copy_from_slice(self.h);
            }
            self.input.stage_quads(t, len, self.quads);
            for k in 0..d.blocks(self.input.group) {
                for sub in 0..LANES / S::F32_LANES {
                    self.block(s, &mut st, (k, sub), (t, len));
                }
            }
        }
    }
}

/// Transposes a state `[group, block, states, lanes]` out to `[d_inner, d_state]`.
pub(super) fn store_state(d: &Dims, h: &[f32], out: &mut [f32]) {
    for (c, row) in out.chunks_exact_mut(d.d_state).enumerate() {
        let (block, lane) = (c / LANES, c % LANES);
        for (n, out) in row.iter_mut().enumerate() {
            *out = h[(block * d.states + n) * LANES + lane];
        }
    }
}
