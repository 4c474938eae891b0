//! Selective scan, backward. From the state kept before each chunk the chunk is replayed, quad by quad, then walked
//! backwards while its decays and states are still in the first cache.
//!
//! With x = Δ·A and dh the gradient of h_t: dC = dy·h, dB = dh·Δu, d(Δu) = dh·B, dx = dh·exp(x)·h_{t-1},
//! dΔ = Σ dx·A + d(Δu)·u, dA = Σ dx·Δ. Gradients of B and C are kept a lane apart until the group's blocks are done.

use super::dims::{CHUNK, GROUP, GROUP_BLOCKS, LANES, Lanes, QUAD, lanes};
use super::gemm::{load, store};
use super::math;
use super::scan_fwd::{Quads, ScanInput};
use pulp::{Arch, Simd, WithSimd};

/// Working memory of one backward scan task.
#[derive(Debug)]
pub(super) struct ScanBwdScratch {
    quads: Quads,
    /// State before the chunk, `[block, states]`.
    h: Vec<Lanes>,
    /// Gradient of the carried h, `[block, states]`.
    dh: Vec<Lanes>,
    /// `[quad, token, QUAD]`, summed over the group's blocks.
    db: Vec<[Lanes; QUAD]>,
    dc: Vec<[Lanes; QUAD]>,
}

impl ScanBwdScratch {
    pub fn new(states: usize) -> Self {
        let by_token = vec![[[0.0; LANES]; QUAD]; states / QUAD * CHUNK];
        let by_block = vec![[0.0; LANES]; states * GROUP_BLOCKS];
        let quads = Quads::new(states);
        Self { quads, h: by_block.clone(), dh: by_block, db: by_token.clone(), dc: by_token }
    }

    pub fn len(&self) -> usize {
        let lanes = self.h.len() + self.dh.len() + QUAD * (self.db.len() + self.dc.len());
        self.quads.len() + lanes * LANES
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

/// A block's values along a chunk.
struct Stage<S: Simd> {
    u: [S::f32s; CHUNK],
    delta: [S::f32s; CHUNK],
    du: [S::f32s; CHUNK],
    /// Gradient of the output before the gate.
    dy: [S::f32s; CHUNK],
    y: [S::f32s; CHUNK],
    gate: [S::f32s; CHUNK],
    /// dg · silu'(z).
    dg_slope: [S::f32s; CHUNK],
    /// Gradient of Δ·u, and Σ dx · A · log2 e.
    d_du: [S::f32s; CHUNK],
    d_decay: [S::f32s; CHUNK],
    /// A quad's decays, and its states before each token.
    decays: [[S::f32s; QUAD]; CHUNK],
    states: [[S::f32s; QUAD]; CHUNK + 1],
}

impl<S: Simd> Stage<S> {
    #[inline(always)]
    fn new(s: S) -> Self {
        let zero = s.splat_f32s(0.0);
        let row = [zero; CHUNK];
        Self {
            u: row,
            delta: row,
            du: row,
            dy: row,
            y: row,
            gate: row,
            dg_slope: row,
            d_du: row,
            d_decay: row,
            decays: [[zero; QUAD]; CHUNK],
            states: [[zero; QUAD]; CHUNK + 1],
        }
    }
}

impl ScanBwd<'_> {
    pub fn run(self) {
        Arch::new().dispatch(self);
    }

    #[inline(always)]
    fn stage<S: Simd>(&self, s: S, st: &mut Stage<S>, (k, sub): (usize, usize), (t, len): (usize, usize)) {
        let input = &self.input;
        let skip = load::<S>(lanes(&input.weights.skip, input.channel(k)), sub);
        for i in 0..len {
            let z = load::<S>(input.gate(t + i, k), sub);
            let dg = load::<S>(input.tile(self.dg, t + i, k), sub);
            st.u[i] = load::<S>(input.tile(input.u, t + i, k), sub);
            st.delta[i] = load::<S>(input.tile(input.delta, t + i, k), sub);
            st.du[i] = s.mul_f32s(st.delta[i], st.u[i]);
            st.y[i] = s.mul_f32s(skip, st.u[i]);
            let (gate, slope) = math::silu_with_slope(s, z);
            st.gate[i] = gate;
            st.dg_slope[i] = s.mul_f32s(dg, slope);
            st.dy[i] = s.mul_f32s(dg, gate);
            st.d_du[i] = s.splat_f32s(0.0);
            st.d_decay[i] = s.splat_f32s(0.0);
        }
    }

    /// Replays states `n..n + 4` of block `k`.
    #[inline(always)]
    fn replay<S: Simd>(
        &self,
        s: S,
        st: &mut Stage<S>,
        (k, n, sub): (usize, usize, usize),
        (t, len): (usize, usize),
    ) {
        let zero = s.splat_f32s(0.0);
        let resets = self.input.resets(t, len);
        let h = &self.scratch.h[k * self.input.dims.states + n..][..QUAD];
        let a2 = &self.input.a2(k)[n..][..QUAD];
        let b = &self.scratch.quads.b[n / QUAD * CHUNK..][..CHUNK];
        let c = &self.scratch.quads.c[n / QUAD * CHUNK..][..CHUNK];
        let mut h: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&h[j], sub));
        let a2: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&a2[j], sub));
        st.states[0] = h;
        for i in 0..len {
            if resets[i] != 0 {
                h = [zero; QUAD];
            }
            let (delta, du) = (st.delta[i], st.du[i]);
            let mut y = st.y[i];
            for j in 0..QUAD {
                let decay = math::exp2_nonpositive(s, s.mul_f32s(delta, a2[j]));
                st.decays[i][j] = decay;
                h[j] = s.mul_add_f32s(decay, h[j], s.mul_f32s(du, s.splat_f32s(b[i][j])));
                st.states[i + 1][j] = h[j];
                y = s.mul_add_f32s(h[j], s.splat_f32s(c[i][j]), y);
            }
            st.y[i] = y;
        }
    }

    /// Walks back over states `n..n + 4` of block `k`.
    #[inline(always)]
    fn walk_back<S: Simd>(
        &mut self,
        s: S,
        st: &mut Stage<S>,
        (k, n, sub): (usize, usize, usize),
        (t, len): (usize, usize),
    ) {
        let zero = s.splat_f32s(0.0);
        let states = self.input.dims.states;
        let resets = self.input.resets(t, len);
        let a2 = &self.input.a2(k)[n..][..QUAD];
        let b = &self.scratch.quads.b[n / QUAD * CHUNK..][..CHUNK];
        let c = &self.scratch.quads.c[n / QUAD * CHUNK..][..CHUNK];
        let db = &mut self.scratch.db[n / QUAD * CHUNK..][..CHUNK];
        let dc = &mut self.scratch.dc[n / QUAD * CHUNK..][..CHUNK];
        let dh_rows = &mut self.scratch.dh[k * states + n..][..QUAD];
        let da_rows = &mut self.da[(k * states + n) * LANES..][..QUAD * LANES];
        let a2: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&a2[j], sub));
        let mut carried: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(&dh_rows[j], sub));
        let mut da: [S::f32s; QUAD] = std::array::from_fn(|j| load::<S>(lanes(da_rows, j * LANES), sub));
        for i in (0..len).rev() {
            let (dy, du, delta) = (st.dy[i], st.du[i], st.delta[i]);
            let (mut d_du, mut d_decay) = (st.d_du[i], st.d_decay[i]);
            let fresh = resets[i] != 0;
            for j in 0..QUAD {
                let dh = s.mul_add_f32s(dy, s.splat_f32s(c[i][j]), carried[j]);
                let sum = load::<S>(&dc[i][j], sub);
                store::<S>(&mut dc[i][j], sub, s.mul_add_f32s(dy, st.states[i + 1][j], sum));
                let sum = load::<S>(&db[i][j], sub);
                store::<S>(&mut db[i][j], sub, s.mul_add_f32s(dh, du, sum));
                d_du = s.mul_add_f32s(dh, s.splat_f32s(b[i][j]), d_du);
                carried[j] = s.mul_f32s(dh, st.decays[i][j]);
                if fresh {
                    // The state before a document's first token is zero and takes no gradient.
                    carried[j] = zero;
                } else {
                    let dx = s.mul_f32s(carried[j], st.states[i][j]);
                    d_decay = s.mul_add_f32s(dx, a2[j], d_decay);
                    da[j] = s.mul_add_f32s(dx, delta, da[j]);
                }
            }
            (st.d_du[i], st.d_decay[i]) = (d_du, d_decay);
        }
        for j in 0..QUAD {
            store::<S>(&mut dh_rows[j], sub, carried[j]);
            store::<S>(&mut da_rows[j * LANES..][..LANES], sub, da[j]);
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, st: &Stage<S>, (k, sub): (usize, usize), (t, len): (usize, usize)) {
        let skip = load::<S>(lanes(&self.input.weights.skip, self.input.channel(k)), sub);
        let ln2 = s.splat_f32s(std::f32::consts::LN_2);
        let (d_skip_out, d_bias_out) = self.d_skip_bias.split_at_mut(GROUP);
        let d_skip_out = &mut d_skip_out[k * LANES..][..LANES];
        let d_bias_out = &mut d_bias_out[k * LANES..][..LANES];
        let mut d_skip = load::<S>(d_skip_out, sub);
        let mut d_bias = load::<S>(d_bias_out, sub);
        for i in (0..len).rev() {
            let at = (t + i) * GROUP + k * LANES;
            let (dy, u, delta) = (st.dy[i], st.u[i], st.delta[i]);
            store::<S>(&mut self.g[at..][..LANES], sub, s.mul_f32s(st.y[i], st.gate[i]));
            store::<S>(&mut self.dz[at..][..LANES], sub, s.mul_f32s(st.y[i], st.dg_slope[i]));
            let du = s.mul_add_f32s(st.d_du[i], delta, s.mul_f32s(dy, skip));
            store::<S>(&mut self.du[at..][..LANES], sub, du);
            let d_delta = s.mul_add_f32s(st.d_decay[i], ln2, s.mul_f32s(st.d_du[i], u));
            let draw = s.mul_f32s(d_delta, math::softplus_slope(s, delta));
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
                for (n, out) in out.chunks_mut(QUAD).enumerate() {
                    for (out, sums) in out.iter_mut().zip(&sums[n * CHUNK + i]) {
                        *out = fold(sums);
                    }
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
        let mut st = Stage::new(s);
        self.scratch.dh.fill([0.0; LANES]);
        self.da.fill(0.0);
        self.d_skip_bias.fill(0.0);
        for chunk in (0..d.chunks).rev() {
            let t = chunk * CHUNK;
            let len = CHUNK.min(d.seq - t);
            self.input.stage_quads(t, len, &mut self.scratch.quads);
            let kept = &self.kept[chunk * d.group_state()..][..d.group_state()];
            self.scratch.h.copy_from_slice(kept.as_chunks().0);
            self.scratch.db.fill([[0.0; LANES]; QUAD]);
            self.scratch.dc.fill([[0.0; LANES]; QUAD]);
            for k in 0..d.blocks(self.input.group) {
                for sub in 0..LANES / S::F32_LANES {
                    self.stage(s, &mut st, (k, sub), (t, len));
                    for n in (0..d.states).step_by(QUAD) {
                        self.replay(s, &mut st, (k, n, sub), (t, len));
                        self.walk_back(s, &mut st, (k, n, sub), (t, len));
                    }
                    self.finish(s, &st, (k, sub), (t, len));
                }
            }
            self.reduce(t, len);
        }
    }
}
