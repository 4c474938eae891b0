//! Selective scan, forward: Δ = softplus(raw + bias); h = exp(Δ·A)·h + Δ·u·B; y = (Σ h·C + D·u)·silu(z).
//!
//! Lanes are channels: a block of 16 channels keeps one vector a state, B and C of a token are broadcast. States go
//! in quads, a chunk of tokens at a time, so the quad's h stays in registers along the chunk.

use super::derived::LayerWeights;
use super::dims::{CHUNK, Dims, GROUP, GROUP_BLOCKS, LANES, Lanes, QUAD, lanes};
use super::gemm::{load, store};
use super::math;
use pulp::{Arch, Simd, WithSimd};

/// What both directions read. Token buffers cover the whole pass.
#[derive(Clone, Copy)]
pub(super) struct ScanInput<'a> {
    pub dims: &'a Dims,
    pub weights: &'a LayerWeights,
    pub u: &'a [f32],
    pub raw: &'a [f32],
    /// Rows of `2 · width`; z is the right half.
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

impl ScanInput<'_> {
    /// First row of the chunk that starts at token `t`.
    pub fn row(&self, t: usize) -> usize {
        self.batch * self.dims.seq + t
    }

    /// First channel of block `k` of the group.
    pub fn channel(&self, k: usize) -> usize {
        self.group * GROUP + k * LANES
    }

    /// A · log2 e of block `k`, `[states]`.
    pub fn a2(&self, k: usize) -> &[Lanes] {
        &self.weights.a2[self.channel(k) / LANES * self.dims.states..][..self.dims.states]
    }

    /// Document starts of a chunk.
    pub fn resets(&self, t: usize, len: usize) -> &[u8] {
        &self.reset[self.row(t)..][..len]
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
    fn block<S: Simd>(&mut self, s: S, k: usize, t: usize, len: usize) {
        let d = self.input.dims;
        let (row, channel) = (self.input.row(t), self.input.channel(k));
        let (w, weights) = (d.width, self.input.weights);
        let (bias, skip) = (lanes(&weights.dt_bias, channel), lanes(&weights.skip, channel));
        let resets = self.input.resets(t, len);
        let a2 = self.input.a2(k);
        let h = &mut self.h[k * d.states * LANES..][..d.states * LANES];
        for sub in 0..LANES / S::F32_LANES {
            let zero = s.splat_f32s(0.0);
            let mut delta = [zero; CHUNK];
            let mut du = [zero; CHUNK];
            let mut y = [zero; CHUNK];
            for i in 0..len {
                let raw = load::<S>(lanes(self.input.raw, (row + i) * w + channel), sub);
                let u = load::<S>(lanes(self.input.u, (row + i) * w + channel), sub);
                delta[i] = math::softplus(s, s.add_f32s(raw, load::<S>(bias, sub)));
                du[i] = s.mul_f32s(delta[i], u);
                y[i] = s.mul_f32s(load::<S>(skip, sub), u);
            }
            for n in (0..d.states).step_by(QUAD) {
                let b = &self.quads.b[n / QUAD * CHUNK..][..CHUNK];
                let c = &self.quads.c[n / QUAD * CHUNK..][..CHUNK];
                let mut hv: [S::f32s; QUAD] =
                    std::array::from_fn(|i| load::<S>(lanes(h, (n + i) * LANES), sub));
                let av: [S::f32s; QUAD] = std::array::from_fn(|i| load::<S>(&a2[n + i], sub));
                for i in 0..len {
                    if resets[i] != 0 {
                        hv = [zero; QUAD];
                    }
                    let mut acc = y[i];
                    for j in 0..QUAD {
                        let decay = math::exp2_nonpositive(s, s.mul_f32s(delta[i], av[j]));
                        let input = s.mul_f32s(du[i], s.splat_f32s(b[i][j]));
                        hv[j] = s.mul_add_f32s(decay, hv[j], input);
                        acc = s.mul_add_f32s(hv[j], s.splat_f32s(c[i][j]), acc);
                    }
                    y[i] = acc;
                }
                for (j, &hv) in hv.iter().enumerate() {
                    store::<S>(&mut h[(n + j) * LANES..][..LANES], sub, hv);
                }
            }
            for (i, &y) in y.iter().enumerate().take(len) {
                let z = load::<S>(lanes(self.input.xz, (row + i) * 2 * w + w + channel), sub);
                let out = &mut self.y[(t + i) * GROUP + k * LANES..][..LANES];
                store::<S>(out, sub, s.mul_f32s(y, math::silu(s, z)));
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
            let size = GROUP_BLOCKS * d.states * LANES;
            if let Some(kept) = &mut self.kept {
                kept[chunk * size..][..size].copy_from_slice(self.h);
            }
            self.input.stage_quads(t, len, self.quads);
            for k in 0..d.blocks(self.input.group) {
                self.block(s, k, t, len);
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
