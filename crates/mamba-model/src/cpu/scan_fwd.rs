//! Selective scan, forward: h = exp(Δ·A)·h + Δ·u·B; y = (Σ h·C + D·u)·silu(z).
//!
//! Lanes are channels: a block of 16 channels keeps one vector a state, B and C of a token are broadcast. States go
//! in quads, a chunk of tokens at a time, so the quad's h stays in registers along the chunk.

use super::derived::LayerWeights;
use super::dims::{
    CHUNK, Channels, Dims, GROUP, GROUP_BLOCKS, LANES, Lanes, QUAD, TILE, channels, lanes, tile_row,
};
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

    /// B and C of the quad from state `n` on.
    #[inline(always)]
    pub fn at(&self, n: usize) -> (&[[f32; QUAD]], &[[f32; QUAD]]) {
        let from = n / QUAD * CHUNK;
        (&self.b[from..from + CHUNK], &self.c[from..from + CHUNK])
    }
}

impl<'a> ScanInput<'a> {
    /// Row of the chunk's first token.
    pub fn row(&self, t: usize) -> usize {
        self.batch * self.dims.seq + t
    }

    /// The group's part of a vector of channels.
    #[inline(always)]
    pub fn of_group(&self, x: &'a [f32]) -> &'a Channels {
        channels(x, self.group * GROUP)
    }

    /// A · log2 e of block `k`, `[states]`.
    pub fn a2(&self, k: usize) -> &'a [Lanes] {
        &self.weights.a2.as_chunks().0[(self.group * GROUP_BLOCKS + k) * self.dims.states..]
            [..self.dims.states]
    }

    /// Document starts of a chunk.
    pub fn resets(&self, t: usize, len: usize) -> &'a [u8] {
        &self.reset[self.row(t)..][..len]
    }

    /// Token `t` in a tiled buffer of d_inner columns.
    #[inline(always)]
    pub fn tile(&self, x: &'a [f32], t: usize) -> &'a Channels {
        channels(x, tile_row(self.row(t), self.group, self.dims.groups))
    }

    /// z of token `t`.
    #[inline(always)]
    pub fn gate(&self, t: usize) -> &'a Channels {
        let groups = self.dims.groups;
        channels(self.xz, tile_row(self.row(t), groups + self.group, 2 * groups))
    }

    /// Vectors of channels in this group.
    #[inline(always)]
    pub fn vectors<S: Simd>(&self) -> usize {
        self.dims.blocks(self.group) * LANES / S::F32_LANES
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

/// Where vector `v` of a group's channels lies among blocks: the block, and the vector inside it.
#[inline(always)]
pub(super) fn split<S: Simd>(v: usize) -> (usize, usize) {
    (v * S::F32_LANES / LANES, v * S::F32_LANES % LANES / S::F32_LANES)
}

/// Working memory of one forward scan task: a chunk of the group's channels.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct ScanFwdScratch {
    delta: [Channels; CHUNK],
    du: [Channels; CHUNK],
    y: [Channels; CHUNK],
    quads: Quads,
}

impl ScanFwdScratch {
    pub fn new(states: usize) -> Self {
        let zeros = [[0.0; GROUP]; CHUNK];
        Self { quads: Quads::new(states), delta: zeros, du: zeros, y: zeros }
    }

    pub fn len(&self) -> usize {
        self.quads.len() + 3 * CHUNK * GROUP
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
    pub scratch: &'a mut ScanFwdScratch,
}

impl ScanFwd<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }

    /// Transposes the carried state in.
    fn load_state(&mut self) {
        let d = self.input.dims;
        let first = self.input.group * GROUP;
        let end = d.d_inner.min(first + GROUP);
        let rows = self.h_in[first * d.d_state..end * d.d_state].chunks(LANES * d.d_state);
        self.h.fill(0.0);
        for (block, rows) in self.h.chunks_exact_mut(d.states * LANES).zip(rows) {
            let block = block.as_chunks_mut::<LANES>().0;
            for (lane, row) in rows.chunks_exact(d.d_state).enumerate() {
                block.iter_mut().zip(row).for_each(|(state, &h)| state[lane] = h);
            }
        }
    }

    #[inline(always)]
    fn stage<S: Simd>(&mut self, s: S, t: usize, len: usize) {
        let ScanFwdScratch { delta, du, y, .. } = &mut *self.scratch;
        let input = &self.input;
        let skip = input.of_group(&input.weights.skip);
        for i in 0..len {
            let (u, step) = (input.tile(input.u, t + i), input.tile(input.delta, t + i));
            for v in 0..GROUP / S::F32_LANES {
                let (u, step) = (load::<S>(u, v), load::<S>(step, v));
                store::<S>(&mut delta[i], v, step);
                store::<S>(&mut du[i], v, s.mul_f32s(step, u));
                store::<S>(&mut y[i], v, s.mul_f32s(load::<S>(skip, v), u));
            }
        }
    }

    /// States `n..n + 4` of vector `v` along the chunk.
    #[inline(always)]
    fn quad<S: Simd>(&mut self, s: S, (v, n): (usize, usize), (t, len): (usize, usize)) {
        let zero = s.splat_f32s(0.0);
        let (k, sub) = split::<S>(v);
        let resets = self.input.resets(t, len);
        let a2 = &self.input.a2(k)[n..][..QUAD];
        let rows = &mut self.h[(k * self.input.dims.states + n) * LANES..][..QUAD * LANES];
        let ScanFwdScratch { quads, delta, du, y } = &mut *self.scratch;
        let (b, c) = quads.at(n);
        let mut h: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(lanes(rows, j * LANES), sub));
        let a2: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&a2[j], sub));
        for i in 0..len {
            if resets[i] != 0 {
                h = [zero; QUAD];
            }
            let (delta, du) = (load::<S>(&delta[i], v), load::<S>(&du[i], v));
            let mut acc = load::<S>(&y[i], v);
            for j in 0..QUAD {
                let decay = math::exp2_nonpositive(s, s.mul_f32s(delta, a2[j]));
                h[j] = s.mul_add_f32s(decay, h[j], s.mul_f32s(du, s.splat_f32s(b[i][j])));
                acc = s.mul_add_f32s(h[j], s.splat_f32s(c[i][j]), acc);
            }
            store::<S>(&mut y[i], v, acc);
        }
        for (j, &h) in h.iter().enumerate() {
            store::<S>(&mut rows[j * LANES..][..LANES], sub, h);
        }
    }

    #[inline(always)]
    fn gate<S: Simd>(&mut self, s: S, t: usize, len: usize) {
        for i in 0..len {
            let z = self.input.gate(t + i);
            let out = &mut self.y[(t + i) * GROUP..][..GROUP];
            for v in 0..self.input.vectors::<S>() {
                let gate = math::silu(s, load::<S>(z, v));
                store::<S>(out, v, s.mul_f32s(load::<S>(&self.scratch.y[i], v), gate));
            }
        }
    }
}

impl WithSimd for ScanFwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        let d = self.input.dims;
        self.load_state();
        for (chunk, t) in (0..d.seq).step_by(CHUNK).enumerate() {
            let len = CHUNK.min(d.seq - t);
            if let Some(kept) = &mut self.kept {
                kept[chunk * d.group_state()..][..d.group_state()].copy_from_slice(self.h);
            }
            self.input.stage_quads(t, len, &mut self.scratch.quads);
            self.stage(s, t, len);
            for n in (0..d.states).step_by(QUAD) {
                for v in 0..self.input.vectors::<S>() {
                    self.quad(s, (v, n), (t, len));
                }
            }
            self.gate(s, t, len);
        }
    }
}

/// Transposes batch row `b` of a state `[group, batch, block, states, lanes]` out to `[d_inner, d_state]`.
pub(super) fn store_state(d: &Dims, h: &[f32], b: usize, out: &mut [f32]) {
    for (group, out) in out.chunks_mut(GROUP * d.d_state).enumerate() {
        let h = &h[(group * d.batch + b) * d.group_state()..][..d.group_state()];
        for (block, out) in h.chunks_exact(d.states * LANES).zip(out.chunks_mut(LANES * d.d_state)) {
            let block = block.as_chunks::<LANES>().0;
            for (lane, row) in out.chunks_exact_mut(d.d_state).enumerate() {
                row.iter_mut().zip(block).for_each(|(out, state)| *out = state[lane]);
            }
        }
    }
}
