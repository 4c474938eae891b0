//! Selective scan, backward. From the state kept before each chunk the chunk is replayed, quad by quad, then walked
//! backwards while its decays and states are still in the first cache.
//!
//! With x = Δ·A and dh the gradient of h_t: dC = dy·h, dB = dh·Δu, d(Δu) = dh·B, dx = dh·exp(x)·h_{t-1},
//! dΔ = Σ dx·A + d(Δu)·u, dA = Σ dx·Δ. Gradients of B and C are kept a lane apart until the group's blocks are done.

use super::dims::{CHUNK, GROUP, LANES, Lanes, QUAD, lanes};
use super::gemm::{load, store};
use super::math;
use super::scan_fwd::{Quads, ScanInput};
use pulp::{Arch, Simd, WithSimd};

/// Working memory of one backward scan task.
#[derive(Debug)]
pub(super) struct ScanBwdScratch {
    quads: Quads,
    /// Gradient of the carried h, `[block, states]`.
    dh: Vec<Lanes>,
    /// `[quad, token, QUAD]`, summed over the group's blocks.
    db: Vec<[Lanes; QUAD]>,
    dc: Vec<[Lanes; QUAD]>,
}

impl ScanBwdScratch {
    pub fn new(states: usize) -> Self {
        let by_token = vec![[[0.0; LANES]; QUAD]; states / QUAD * CHUNK];
        Self {
            quads: Quads::new(states),
            dh: vec![[0.0; LANES]; states * super::dims::GROUP_BLOCKS],
            db: by_token.clone(),
            dc: by_token,
        }
    }

    pub fn len(&self) -> usize {
        self.quads.len() + (self.dh.len() + QUAD * (self.db.len() + self.dc.len())) * LANES
    }
}

/// One (batch row, group) of the backward scan. Outputs are overwritten.
pub(super) struct ScanBwd<'a> {
    pub input: ScanInput<'a>,
    /// State before each chunk, `[chunk, block, states, lanes]`.
    pub kept: &'a [f32],
    /// Gradient of the gated output, rows of `width` of the whole pass.
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

/// A block's values along a chunk.
struct Stage<S: Simd> {
    u: [S::f32s; CHUNK],
    delta: [S::f32s; CHUNK],
    slope: [S::f32s; CHUNK],
    du: [S::f32s; CHUNK],
    /// Gradient of the output before the gate.
    dy: [S::f32s; CHUNK],
    y: [S::f32s; CHUNK],
    /// Gradient of Δ·u, and Σ dx · A · log2 e.
    d_du: [S::f32s; CHUNK],
    d_decay: [S::f32s; CHUNK],
}

impl ScanBwd<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }

    #[inline(always)]
    fn stage<S: Simd>(&self, s: S, k: usize, sub: usize, t: usize, len: usize) -> Stage<S> {
        let zero = [s.splat_f32s(0.0); CHUNK];
        let mut st: Stage<S> = Stage {
            u: zero,
            delta: zero,
            slope: zero,
            du: zero,
            dy: zero,
            y: zero,
            d_du: zero,
            d_decay: zero,
        };
        let input = &self.input;
        let (row, channel, w) = (input.row(t), input.channel(k), input.dims.width);
        let bias = load::<S>(lanes(&input.weights.dt_bias, channel), sub);
        let skip = load::<S>(lanes(&input.weights.skip, channel), sub);
        for i in 0..len {
            let at = (row + i) * w + channel;
            let raw = s.add_f32s(load::<S>(lanes(input.raw, at), sub), bias);
            st.u[i] = load::<S>(lanes(input.u, at), sub);
            (st.delta[i], st.slope[i]) = math::softplus_with_slope(s, raw);
            st.du[i] = s.mul_f32s(st.delta[i], st.u[i]);
            st.y[i] = s.mul_f32s(skip, st.u[i]);
            let z = load::<S>(lanes(input.xz, (row + i) * 2 * w + w + channel), sub);
            st.dy[i] = s.mul_f32s(load::<S>(lanes(self.dg, at), sub), math::silu(s, z));
        }
        st
    }

    /// Replays states `n..n + 4` of block `k`, then walks back.
    #[inline(always)]
    fn quad<S: Simd>(
        &mut self,
        s: S,
        st: &mut Stage<S>,
        (k, n, sub): (usize, usize, usize),
        (t, len): (usize, usize),
    ) {
        let d = self.input.dims;
        let size = d.group_state();
        let zero = s.splat_f32s(0.0);
        let resets = self.input.resets(t, len);
        let kept = &self.kept[t / CHUNK * size + (k * d.states + n) * LANES..][..QUAD * LANES];
        let mut h: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(lanes(kept, j * LANES), sub));
        let a2: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&self.input.a2(k)[n + j], sub));
        let b = &self.scratch.quads.b[n / QUAD * CHUNK..][..CHUNK];
        let c = &self.scratch.quads.c[n / QUAD * CHUNK..][..CHUNK];
        let mut decays = [[zero; QUAD]; CHUNK];
        let mut before = [[zero; QUAD]; CHUNK];
        let mut after = [[zero; QUAD]; CHUNK];
        for i in 0..len {
            if resets[i] != 0 {
                h = [zero; QUAD];
            }
            before[i] = h;
            let mut acc = st.y[i];
            for j in 0..QUAD {
                let decay = math::exp2_nonpositive(s, s.mul_f32s(st.delta[i], a2[j]));
                let input = s.mul_f32s(st.du[i], s.splat_f32s(b[i][j]));
                decays[i][j] = decay;
                h[j] = s.mul_add_f32s(decay, h[j], input);
                acc = s.mul_add_f32s(h[j], s.splat_f32s(c[i][j]), acc);
            }
            after[i] = h;
            st.y[i] = acc;
        }

        let dh_rows = &mut self.scratch.dh[k * d.states + n..][..QUAD];
        let mut carried: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&dh_rows[j], sub));
        let da_rows = &mut self.da[(k * d.states + n) * LANES..][..QUAD * LANES];
        let mut da: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(lanes(da_rows, j * LANES), sub));
        let db = &mut self.scratch.db[n / QUAD * CHUNK..][..CHUNK];
        let dc = &mut self.scratch.dc[n / QUAD * CHUNK..][..CHUNK];
        for i in (0..len).rev() {
            let (mut d_du, mut d_decay) = (st.d_du[i], st.d_decay[i]);
            for j in 0..QUAD {
                let dh = s.mul_add_f32s(st.dy[i], s.splat_f32s(c[i][j]), carried[j]);
                let sum = load::<S>(&dc[i][j], sub);
                store::<S>(&mut dc[i][j], sub, s.mul_add_f32s(st.dy[i], after[i][j], sum));
                let sum = load::<S>(&db[i][j], sub);
                store::<S>(&mut db[i][j], sub, s.mul_add_f32s(dh, st.du[i], sum));
                d_du = s.mul_add_f32s(dh, s.splat_f32s(b[i][j]), d_du);
                carried[j] = s.mul_f32s(dh, decays[i][j]);
                let dx = s.mul_f32s(carried[j], before[i][j]);
                d_decay = s.mul_add_f32s(dx, a2[j], d_decay);
                da[j] = s.mul_add_f32s(dx, st.delta[i], da[j]);
            }
            if resets[i] != 0 {
                carried = [zero; QUAD];
            }
            (st.d_du[i], st.d_decay[i]) = (d_du, d_decay);
        }
        for j in 0..QUAD {
            store::<S>(&mut dh_rows[j], sub, carried[j]);
            store::<S>(&mut da_rows[j * LANES..][..LANES], sub, da[j]);
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, st: &Stage<S>, k: usize, sub: usize, t: usize, len: usize) {
        let input = &self.input;
        let (row, channel, w) = (input.row(t), input.channel(k), input.dims.width);
        let skip = load::<S>(lanes(&input.weights.skip, channel), sub);
        let ln2 = s.splat_f32s(std::f32::consts::LN_2);
        let (d_skip_out, d_bias_out) = self.d_skip_bias.split_at_mut(GROUP);
        let d_skip_out = &mut d_skip_out[k * LANES..][..LANES];
        let d_bias_out = &mut d_bias_out[k * LANES..][..LANES];
        let mut d_skip = load::<S>(d_skip_out, sub);
        let mut d_bias = load::<S>(d_bias_out, sub);
        for i in (0..len).rev() {
            let at = (t + i) * GROUP + k * LANES;
            let z = load::<S>(lanes(input.xz, (row + i) * 2 * w + w + channel), sub);
            let (gate, gate_slope) = math::silu_with_slope(s, z);
            let dg = load::<S>(lanes(self.dg, (row + i) * w + channel), sub);
            let (dy, u) = (st.dy[i], st.u[i]);
            store::<S>(&mut self.g[at..][..LANES], sub, s.mul_f32s(st.y[i], gate));
            store::<S>(&mut self.dz[at..][..LANES], sub, s.mul_f32s(s.mul_f32s(dg, st.y[i]), gate_slope));
            let du = s.mul_add_f32s(st.d_du[i], st.delta[i], s.mul_f32s(dy, skip));
            store::<S>(&mut self.du[at..][..LANES], sub, du);
            let d_delta = s.mul_add_f32s(st.d_decay[i], ln2, s.mul_f32s(st.d_du[i], u));
            let draw = s.mul_f32s(d_delta, st.slope[i]);
            store::<S>(&mut self.draw[at..][..LANES], sub, draw);
            d_skip = s.mul_add_f32s(dy, u, d_skip);
            d_bias = s.add_f32s(d_bias, draw);
        }
        store::<S>(d_skip_out, sub, d_skip);
        store::<S>(d_bias_out, sub, d_bias);
    }

    /// Folds the lanes of the chunk's dB and dC.
    #[inline(always)]
    fn reduce(&mut self, t: usize, len: usize) {
        let d_state = self.input.dims.d_state;
        for i in 0..len {
            let (db, dc) = self.dbc[(t + i) * 2 * d_state..][..2 * d_state].split_at_mut(d_state);
            for (out, sums) in [(db, &self.scratch.db), (dc, &self.scratch.dc)] {
                for (n, out) in out.iter_mut().enumerate() {
                    *out = fold(&sums[n / QUAD * CHUNK + i][n % QUAD]);
                }
            }
        }
    }
}

/// Sum of the lanes, by halves.
#[inline(always)]
fn fold(x: &Lanes) -> f32 {
    let a: [f32; 8] = std::array::from_fn(|i| x[i] + x[i + 8]);
    let b: [f32; 4] = std::array::from_fn(|i| a[i] + a[i + 4]);
    (b[0] + b[2]) + (b[1] + b[3])
}

impl WithSimd for ScanBwd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, s: S) {
        let d = self.input.dims;
        self.scratch.dh.fill([0.0; LANES]);
        self.da.fill(0.0);
        self.d_skip_bias.fill(0.0);
        for chunk in (0..d.chunks).rev() {
            let t = chunk * CHUNK;
            let len = CHUNK.min(d.seq - t);
            self.input.stage_quads(t, len, &mut self.scratch.quads);
            self.scratch.db.fill([[0.0; LANES]; QUAD]);
            self.scratch.dc.fill([[0.0; LANES]; QUAD]);
            for k in 0..d.blocks(self.input.group) {
                for sub in 0..LANES / S::F32_LANES {
                    let mut st = self.stage(s, k, sub, t, len);
                    for n in (0..d.states).step_by(QUAD) {
                        self.quad(s, &mut st, (k, n, sub), (t, len));
                    }
                    self.finish(s, &st, k, sub, t, len);
                }
            }
            self.reduce(t, len);
        }
    }
}
