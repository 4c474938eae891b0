//! Selective scan, backward. From the state kept before each chunk the chunk is replayed, quad by quad, then walked
//! backwards while its decays and states are still in the first cache.
//!
//! With x = Δ·A and dh the gradient of h_t: dC = dy·h, dB = dh·Δu, d(Δu) = dh·B, dx = dh·exp(x)·h_{t-1},
//! dΔ = Σ dx·A + d(Δu)·u, dA = Σ dx·Δ. Gradients of a quad's B and C stay a lane apart until the group is through.

use super::buffer::Buffer;
use super::dims::{CHUNK, GROUP, GROUP_BLOCKS, LANES, Lanes, QUAD, fold, lanes};
use super::gemm::{load, store};
use super::math;
use super::scan_fwd::{Quads, ScanInput, split};
use pulp::{Arch, Simd, WithSimd};

/// Working memory of one backward scan task.
#[derive(Debug)]
pub(super) struct ScanBwdScratch {
    quads: Quads,
    /// State before the chunk, `[block, states]`.
    h: Buffer,
    /// Gradient of the carried h, `[block, states]`.
    dh: Buffer,
    stage: Box<[[Token; CHUNK]; GROUP_BLOCKS]>,
    sums: Box<[[Sums; QUAD]; CHUNK]>,
}

/// A block's values at a token. One record, so that what is used together lies together.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Token {
    delta: Lanes,
    du: Lanes,
    /// Gradient of the output before the gate.
    dy: Lanes,
    y: Lanes,
    /// Gradient of Δ·u, and Σ dx · A · log2 e.
    d_du: Lanes,
    d_decay: Lanes,
    gate: Lanes,
    /// dg · silu'(z).
    dg_slope: Lanes,
}

/// Gradients of a quad's B and C, summed over the group's blocks.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Sums {
    db: Lanes,
    dc: Lanes,
}

/// A state's decay at a token, and what the token before left of it, of one vector of channels.
#[derive(Clone, Copy)]
struct Replayed<S: Simd> {
    decay: S::f32s,
    before: S::f32s,
}

/// A quad along a chunk; the last row holds what the chunk leaves.
type Replay<S> = [[Replayed<S>; QUAD]; CHUNK + 1];

impl ScanBwdScratch {
    pub fn new(states: usize) -> Self {
        let by_block = Buffer::zeros(states * GROUP);
        let x = [0.0; LANES];
        let token = Token { delta: x, du: x, dy: x, y: x, d_du: x, d_decay: x, gate: x, dg_slope: x };
        Self {
            quads: Quads::new(states),
            h: by_block.clone(),
            dh: by_block,
            stage: Box::new([[token; CHUNK]; GROUP_BLOCKS]),
            sums: Box::new([[Sums { db: x, dc: x }; QUAD]; CHUNK]),
        }
    }

    pub fn len(&self) -> usize {
        let stage = (size_of_val(&*self.stage) + size_of_val(&*self.sums)) / size_of::<f32>();
        self.quads.len() + self.h.len() + self.dh.len() + stage
    }
}

/// One (batch row, group) of the backward scan. Outputs are overwritten.
pub(super) struct ScanBwd<'a> {
    pub input: ScanInput<'a>,
    /// State before each chunk, `[chunk, block, states, lanes]`.
    pub kept: &'a [f32],
    /// Gradient of the gated output, tiled, of the whole pass.
    pub dg: &'a [f32],
    /// Gated output again, `[seq, 64]`; so are the next three.
    pub g: &'a mut [f32],
    pub du: &'a mut [f32],
    pub draw: &'a mut [f32],
    pub dz: &'a mut [f32],
    /// `[seq, dB | dC]`, this group's part.
    pub dbc: &'a mut [f32],
    /// Gradient of A, `[block, states, lanes]`.
    pub da: &'a mut [f32],
    /// Gradients of the skip and of the Δ bias, `[64]` each.
    pub d_skip_bias: &'a mut [f32],
    pub scratch: &'a mut ScanBwdScratch,
}

impl ScanBwd<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }

    #[inline(always)]
    fn stage<S: Simd>(&mut self, s: S, t: usize, len: usize) {
        let input = &self.input;
        let skip = input.of_group(&input.weights.skip);
        let zero = s.splat_f32s(0.0);
        for i in 0..len {
            let (z, dg) = (input.gate(t + i), input.tile(self.dg, t + i));
            let (u, delta) = (input.tile(input.u, t + i), input.tile(input.delta, t + i));
            for v in 0..GROUP / S::F32_LANES {
                let (k, sub) = split::<S>(v);
                let token = &mut self.scratch.stage[k][i];
                let (u, dg, delta) = (load::<S>(u, v), load::<S>(dg, v), load::<S>(delta, v));
                let (gate, slope) = math::silu_with_slope(s, load::<S>(z, v));
                store::<S>(&mut token.delta, sub, delta);
                store::<S>(&mut token.du, sub, s.mul_f32s(delta, u));
                store::<S>(&mut token.dy, sub, s.mul_f32s(dg, gate));
                store::<S>(&mut token.y, sub, s.mul_f32s(load::<S>(skip, v), u));
                store::<S>(&mut token.d_du, sub, zero);
                store::<S>(&mut token.d_decay, sub, zero);
                store::<S>(&mut token.gate, sub, gate);
                store::<S>(&mut token.dg_slope, sub, s.mul_f32s(dg, slope));
            }
        }
    }

    /// Replays states `n..n + 4` of vector `v`.
    #[inline(always)]
    fn replay<S: Simd>(
        &mut self,
        s: S,
        replay: &mut Replay<S>,
        (v, n): (usize, usize),
        (t, len): (usize, usize),
    ) {
        let zero = s.splat_f32s(0.0);
        let (k, sub) = split::<S>(v);
        let resets = self.input.resets(t, len);
        let h = &self.scratch.h[(k * self.input.dims.states + n) * LANES..][..QUAD * LANES];
        let a2 = &self.input.a2(k)[n..][..QUAD];
        let (b, c) = self.scratch.quads.at(n);
        let tokens = &mut self.scratch.stage[k][..len];
        let mut h: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(lanes(h, j * LANES), sub));
        let a2: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&a2[j], sub));
        for (i, token) in tokens.iter_mut().enumerate() {
            let before = h;
            if resets[i] != 0 {
                h = [zero; QUAD];
            }
            let (delta, du) = (load::<S>(&token.delta, sub), load::<S>(&token.du, sub));
            let mut y = load::<S>(&token.y, sub);
            for j in 0..QUAD {
                let decay = math::exp2_nonpositive(s, s.mul_f32s(delta, a2[j]));
                replay[i][j] = Replayed { decay, before: before[j] };
                h[j] = s.mul_add_f32s(decay, h[j], s.mul_f32s(du, s.splat_f32s(b[i][j])));
                y = s.mul_add_f32s(h[j], s.splat_f32s(c[i][j]), y);
            }
            store::<S>(&mut token.y, sub, y);
        }
        replay[len] = h.map(|before| Replayed { decay: zero, before });
    }

    /// Walks back over states `n..n + 4` of vector `v`; the first block starts the sums of dB and dC.
    #[inline(always)]
    fn walk_back<S: Simd, const FIRST: bool>(
        &mut self,
        s: S,
        replay: &Replay<S>,
        (v, n): (usize, usize),
        (t, len): (usize, usize),
    ) {
        let zero = s.splat_f32s(0.0);
        let (k, sub) = split::<S>(v);
        let states = self.input.dims.states;
        let resets = self.input.resets(t, len);
        let a2 = &self.input.a2(k)[n..][..QUAD];
        let (b, c) = self.scratch.quads.at(n);
        let tokens = &mut self.scratch.stage[k][..len];
        let sums = &mut self.scratch.sums[..len];
        let dh_rows = &mut self.scratch.dh[(k * states + n) * LANES..][..QUAD * LANES];
        let da_rows = &mut self.da[(k * states + n) * LANES..][..QUAD * LANES];
        let a2: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&a2[j], sub));
        let mut carried: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(lanes(dh_rows, j * LANES), sub));
        let mut da: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(lanes(da_rows, j * LANES), sub));
        let mut after = replay[len].map(|r| r.before);
        for i in (0..len).rev() {
            let (token, sums) = (&mut tokens[i], &mut sums[i]);
            let (dy, du) = (load::<S>(&token.dy, sub), load::<S>(&token.du, sub));
            let delta = load::<S>(&token.delta, sub);
            let (mut d_du, mut d_decay) = (load::<S>(&token.d_du, sub), load::<S>(&token.d_decay, sub));
            let fresh = resets[i] != 0;
            for j in 0..QUAD {
                let dh = s.mul_add_f32s(dy, s.splat_f32s(c[i][j]), carried[j]);
                let Sums { db, dc } = &mut sums[j];
                let sum = if FIRST { zero } else { load::<S>(dc, sub) };
                store::<S>(dc, sub, s.mul_add_f32s(dy, after[j], sum));
                let sum = if FIRST { zero } else { load::<S>(db, sub) };
                store::<S>(db, sub, s.mul_add_f32s(dh, du, sum));
                d_du = s.mul_add_f32s(dh, s.splat_f32s(b[i][j]), d_du);
                let Replayed { decay, before } = replay[i][j];
                carried[j] = s.mul_f32s(dh, decay);
                if fresh {
                    // The state before a document's first token is zero and takes no gradient.
                    carried[j] = zero;
                } else {
                    let dx = s.mul_f32s(carried[j], before);
                    d_decay = s.mul_add_f32s(dx, a2[j], d_decay);
                    da[j] = s.mul_add_f32s(dx, delta, da[j]);
                }
            }
            after = replay[i].map(|r| r.before);
            store::<S>(&mut tokens[i].d_du, sub, d_du);
            store::<S>(&mut tokens[i].d_decay, sub, d_decay);
        }
        for j in 0..QUAD {
            store::<S>(&mut dh_rows[j * LANES..][..LANES], sub, carried[j]);
            store::<S>(&mut da_rows[j * LANES..][..LANES], sub, da[j]);
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, t: usize, len: usize) {
        let input = &self.input;
        let skip = input.of_group(&input.weights.skip);
        let ln2 = s.splat_f32s(std::f32::consts::LN_2);
        let (d_skip, d_bias) = self.d_skip_bias.split_at_mut(GROUP);
        for i in (0..len).rev() {
            let at = (t + i) * GROUP;
            let u = input.tile(input.u, t + i);
            let (g, dz) = (&mut self.g[at..at + GROUP], &mut self.dz[at..at + GROUP]);
            let (du_out, draw_out) = (&mut self.du[at..at + GROUP], &mut self.draw[at..at + GROUP]);
            for v in 0..input.vectors::<S>() {
                let (k, sub) = split::<S>(v);
                let token = &self.scratch.stage[k][i];
                let (u, delta) = (load::<S>(u, v), load::<S>(&token.delta, sub));
                let (dy, y) = (load::<S>(&token.dy, sub), load::<S>(&token.y, sub));
                let (d_du, d_decay) = (load::<S>(&token.d_du, sub), load::<S>(&token.d_decay, sub));
                store::<S>(g, v, s.mul_f32s(y, load::<S>(&token.gate, sub)));
                store::<S>(dz, v, s.mul_f32s(y, load::<S>(&token.dg_slope, sub)));
                let du = s.mul_add_f32s(d_du, delta, s.mul_f32s(dy, load::<S>(skip, v)));
                store::<S>(du_out, v, du);
                let d_delta = s.mul_add_f32s(d_decay, ln2, s.mul_f32s(d_du, u));
                let draw = s.mul_f32s(d_delta, math::softplus_slope(s, delta));
                store::<S>(draw_out, v, draw);
                let sum = s.mul_add_f32s(dy, u, load::<S>(d_skip, v));
                store::<S>(d_skip, v, sum);
                let sum = s.add_f32s(load::<S>(d_bias, v), draw);
                store::<S>(d_bias, v, sum);
            }
        }
    }

    /// Folds the lanes of a quad's dB and dC.
    #[inline(always)]
    fn reduce(&mut self, n: usize, t: usize, len: usize) {
        let d_state = self.input.dims.d_state;
        let count = QUAD.min(d_state - n);
        for (i, sums) in self.scratch.sums.iter().enumerate().take(len) {
            let out = &mut self.dbc[(t + i) * 2 * d_state..][..2 * d_state];
            for (j, sums) in sums.iter().enumerate().take(count) {
                out[n + j] = fold(&sums.db);
                out[d_state + n + j] = fold(&sums.dc);
            }
        }
    }
}

impl WithSimd for ScanBwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        let d = self.input.dims;
        let zero = s.splat_f32s(0.0);
        let mut replay: Replay<S> = [[Replayed { decay: zero, before: zero }; QUAD]; CHUNK + 1];
        self.scratch.dh.fill(0.0);
        self.da.fill(0.0);
        self.d_skip_bias.fill(0.0);
        for chunk in (0..d.chunks).rev() {
            let t = chunk * CHUNK;
            let len = CHUNK.min(d.seq - t);
            let kept = &self.kept[chunk * d.group_state()..][..d.group_state()];
            self.scratch.h.copy_from_slice(kept);
            self.input.stage_quads(t, len, &mut self.scratch.quads);
            self.stage(s, t, len);
            for n in (0..d.states).step_by(QUAD) {
                for v in 0..self.input.vectors::<S>() {
                    self.replay(s, &mut replay, (v, n), (t, len));
                    match split::<S>(v).0 {
                        0 => self.walk_back::<S, true>(s, &replay, (v, n), (t, len)),
                        _ => self.walk_back::<S, false>(s, &replay, (v, n), (t, len)),
                    }
                }
                self.reduce(n, t, len);
            }
            self.finish(s, t, len);
        }
    }
}
