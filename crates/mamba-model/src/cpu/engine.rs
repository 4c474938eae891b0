//! Buffers of the engine and the order of its phases.

use super::block_bwd::{self, BwdBuffers, NormOf, Upper};
use super::block_fwd::{self, Activations, Next, Previous, ScanOut, ScanView, Scratch};
use super::buffer::Buffer;
use super::conv;
use super::derived::{Derived, LayerWeights};
use super::dims::{Dims, GROUP, ROWS, row_task};
use super::gemm::{Layout, Matrix, Out, Rows};
use super::norm::NormAgain;
use super::pool::Slots;
use super::profile::{Phase, PhaseTimes};
use crate::config::ModelConfig;
use crate::input::ModelInput;
use crate::params::ParamTable;
use crate::state::RecurrentState;
use rayon::prelude::*;
use std::sync::Arc;

/// What a forward pass leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Everything that the backward pass reads.
    Keep,
    /// Block inputs and scan states; the rest is computed again.
    Recompute,
    /// Nothing: no backward pass.
    Infer,
}

/// What is kept of a block in every training mode.
#[derive(Debug, Default)]
struct Kept {
    /// Reciprocal root of the norm, `[tokens]`.
    rstd: Buffer,
    /// Samples before the window, `[batch, d_conv - 1, wide]`.
    history: Buffer,
    /// Scan states before each chunk, `[group, batch, chunk, block, states, lanes]`.
    states: Buffer,
}

/// What a pass keeps of some whole batch rows, which go through all blocks before the next part does: what a part
/// needs in between then stays in the caches, and is held once.
#[derive(Debug, Default)]
struct Part {
    /// The input; host buffers may be gone by the time of the backward pass.
    ids: Vec<u32>,
    dense: Buffer,
    /// Input of every block and of the final norm; two, taken in turns, where nothing is kept.
    residuals: Vec<Buffer>,
    /// One a block in [`Mode::Keep`], else none.
    acts: Vec<Activations>,
    kept: Vec<Kept>,
    rstd_f: Buffer,
    reset: Vec<u8>,
    /// Last document start of each batch row.
    last_start: Vec<Option<usize>>,
}

/// The engine without its weights and threads.
#[derive(Debug)]
pub(super) struct Engine {
    pub config: ModelConfig,
    pub table: Arc<ParamTable>,
    /// Sizes of a part.
    pub dims: Dims,
    pub slots: Slots<Scratch>,
    pub times: PhaseTimes,
    /// Model output of all parts, `[batch, seq, d_model]`.
    pub temporal: Buffer,
    pub bwd: Option<BwdBuffers>,
    mode: Mode,
    parts: Vec<Part>,
    /// Activations of the block at work, where they are not kept.
    shared: Activations,
    gated: Buffer,
    h: Buffer,
}

/// Tokens of a part that are aimed at: small enough for the caches, large enough to share among threads.
const PART_TOKENS: usize = 1024;

/// Into how many parts a batch is cut. Sizes alone decide, so that sums do not depend on the machine.
pub(super) fn part_count(batch: usize, seq: usize) -> usize {
    let distance = |parts: &usize| (batch / parts * seq).max(1).ilog2().abs_diff(PART_TOKENS.ilog2());
    (1..=batch).filter(|parts| batch.is_multiple_of(*parts)).min_by_key(distance).unwrap_or(1)
}

impl Engine {
    pub fn new(
        config: &ModelConfig,
        table: Arc<ParamTable>,
        (dims, parts): (Dims, usize),
        mode: Mode,
        threads: usize,
    ) -> Self {
        let layers = config.backbone.n_layers;
        let train = mode != Mode::Infer;
        let mut engine = Self {
            config: config.clone(),
            table,
            dims,
            slots: Slots::new(threads, || Scratch::new(&dims, train)),
            times: PhaseTimes::default(),
            temporal: Buffer::default(),
            bwd: train.then(|| BwdBuffers::new(&dims)),
            mode,
            parts: Vec::new(),
            shared: Activations::default(),
            gated: Buffer::default(),
            h: Buffer::default(),
        };
        engine.parts.resize_with(parts, || {
            let mut part = Part { last_start: vec![None; dims.batch], ..Part::default() };
            part.residuals.resize_with(if train { layers + 1 } else { 2 }, Buffer::default);
            part.kept.resize_with(if train { layers } else { 1 }, Kept::default);
            part.acts.resize_with(if mode == Mode::Keep { layers } else { 0 }, Activations::default);
            part
        });
        engine.resize(dims);
        engine
    }

    /// Sets the window's size; allocates only beyond the largest size so far.
    pub fn resize(&mut self, d: Dims) {
        self.dims = d;
        let m = d.tokens;
        let states = d.batch * d.groups * d.group_state();
        let train = self.mode != Mode::Infer;
        self.temporal.resize(self.parts.len() * m * d.d_model);
        self.gated.resize(d.grouped());
        self.h.resize(states);
        if self.mode != Mode::Keep {
            self.shared.resize(&d);
        }
        for part in &mut self.parts {
            part.residuals.iter_mut().for_each(|r| r.resize(m * d.d_model));
            part.acts.iter_mut().for_each(|a| a.resize(&d));
            for kept in &mut part.kept {
                kept.rstd.resize(m);
                kept.history.resize(d.batch * (d.d_conv - 1) * d.wide());
                kept.states.resize(if train { states * d.chunks } else { 0 });
            }
            part.rstd_f.resize(m);
            part.reset.resize(m, 0);
            match self.config.lm {
                Some(_) => part.ids.resize(m, 0),
                None => part.dense.resize(m * d.input_width),
            }
        }
    }

    /// Parts of the batch.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        let part = |p: &Part| {
            let acts: usize = p.acts.iter().map(Activations::len).sum();
            let kept = |k: &Kept| k.rstd.capacity() + k.history.capacity() + k.states.capacity();
            let rows: usize = p.residuals.iter().map(Buffer::capacity).sum();
            let input = p.ids.capacity() + p.dense.capacity() + p.rstd_f.capacity();
            4 * (acts + rows + input + p.kept.iter().map(kept).sum::<usize>()) + p.reset.capacity()
        };
        let shared = self.shared.len() + self.temporal.capacity() + self.gated.capacity() + self.h.capacity();
        let scratch = self.slots.with(|s| s.len()) * self.slots.len();
        let bwd = self.bwd.as_ref().map_or(0, BwdBuffers::len);
        4 * (shared + scratch + bwd) + self.parts.iter().map(part).sum::<usize>()
    }

    /// A whole forward pass over checked inputs; `state` moves on.
    pub fn forward(
        &mut self,
        derived: &Derived,
        params: &[f32],
        input: ModelInput<'_>,
        reset: Option<&[u8]>,
        state: &mut RecurrentState,
    ) {
        let mut times = std::mem::take(&mut self.times);
        for p in 0..self.parts.len() {
            times.time(Phase::Input, || self.embed(derived, params, input, reset, p));
            for l in 0..self.table.layers.len() {
                self.forward_block(derived, params, (p, l), state, &mut times);
            }
            times.time(Phase::Projections, || self.final_norm(derived, params, p));
        }
        self.times = times;
    }

    fn forward_block(
        &mut self,
        derived: &Derived,
        params: &[f32],
        (p, l): (usize, usize),
        state: &mut RecurrentState,
        times: &mut PhaseTimes,
    ) {
        let Self { dims: d, slots, table, shared, gated, h, .. } = self;
        let back = d.d_conv - 1;
        let weights = &derived.layers[l];
        let (conv_size, ssm_size) = (d.batch * d.d_inner * back, d.batch * d.d_inner * d.d_state);
        let slot = l * self.parts.len() + p;
        let conv_state = &mut state.conv[slot * conv_size..][..conv_size];
        let ssm_state = &mut state.ssm[slot * ssm_size..][..ssm_size];
        let Part { residuals, acts, kept, reset, last_start, .. } = &mut self.parts[p];
        let acts = acts.get_mut(l).unwrap_or(shared);
        let kept_slot = l.min(kept.len() - 1);
        let kept = &mut kept[kept_slot];

        times.time(Phase::Projections, || {
            let (before, residual) = pair(residuals, l);
            let previous = l.checked_sub(1).map(|i| Previous {
                residual: before,
                gated,
                out_proj: &derived.layers[i].out_proj,
                out_proj_bias: table.layers[i].out_proj_bias.map(|span| span.of(params)),
            });
            let norm = table.layers[l].norm.of(params);
            let next = Next::Block { weights, norm, xz: &mut acts.xz };
            let eps = self.config.backbone.rms_norm_eps;
            block_fwd::projections(d, slots, eps, previous.as_ref(), residual, &mut kept.rstd, next);
        });
        times.time(Phase::Conv, || {
            conv::load_history(conv_state, d.d_inner, back, d.wide(), &mut kept.history);
            block_fwd::convolve(d, weights, &kept.history, reset, acts);
        });
        times.time(Phase::Scan, || {
            let view = ScanView { weights, acts, reset };
            let out = ScanOut { gated, h, kept: &mut kept.states };
            block_fwd::scan(d, slots, &view, ssm_state, out);
            let rows = ssm_state.par_chunks_mut(d.d_inner * d.d_state).with_min_len(ROWS.div_ceil(d.seq));
            rows.enumerate().for_each(|(b, out)| {
                super::scan_fwd::store_state(d, h, b, out);
            });
            let input = block_fwd::conv_input(d, weights, &acts.xz, &kept.history, reset);
            for (b, &last_start) in last_start.iter().enumerate() {
                let size = d.d_inner * back;
                conv::state_out(&input, b, last_start, &mut conv_state[b * size..][..size]);
            }
        });
    }

    /// The last block's output and the final norm.
    fn final_norm(&mut self, derived: &Derived, params: &[f32], p: usize) {
        let Self { dims: d, slots, table, gated, .. } = self;
        let Part { residuals, rstd_f, .. } = &mut self.parts[p];
        let layers = table.layers.len();
        let (before, residual) = pair(residuals, layers);
        let last = layers - 1;
        let previous = Previous {
            residual: before,
            gated,
            out_proj: &derived.layers[last].out_proj,
            out_proj_bias: table.layers[last].out_proj_bias.map(|span| span.of(params)),
        };
        let size = d.tokens * d.d_model;
        let temporal = &mut self.temporal[p * size..][..size];
        let next = Next::Temporal { norm: table.norm_f.of(params), temporal };
        let eps = self.config.backbone.rms_norm_eps;
        block_fwd::projections(d, slots, eps, Some(&previous), residual, rstd_f, next);
    }

    /// Takes a part's input: embedding rows, projected input, or the input itself; and its document starts.
    fn embed(
        &mut self,
        derived: &Derived,
        params: &[f32],
        input: ModelInput<'_>,
        reset: Option<&[u8]>,
        p: usize,
    ) {
        let (d, part) = (&self.dims, &mut self.parts[p]);
        let (dm, width) = (d.d_model, d.input_width);
        part.set_resets(reset.map(|r| &r[p * d.tokens..][..d.tokens]), d.seq);
        let rows = part.residuals[0].par_chunks_mut(ROWS * dm).enumerate();
        match input {
            ModelInput::Tokens(ids) => {
                let ids = &ids[p * d.tokens..][..d.tokens];
                part.ids.copy_from_slice(ids);
                let Some(span) = self.table.embedding else { return };
                let embedding = span.of(params);
                rows.for_each(|(i, rows)| {
                    for (row, &id) in rows.chunks_exact_mut(dm).zip(&ids[i * ROWS..]) {
                        row.copy_from_slice(&embedding[id as usize * dm..][..dm]);
                    }
                });
            }
            ModelInput::Dense(x) => {
                let x = &x[p * d.tokens * width..][..d.tokens * width];
                part.dense.copy_from_slice(x);
                match (&derived.input, self.table.input_proj) {
                    (Some((weight, _)), Some((_, bias))) => rows.for_each(|(i, c)| {
                        let (a, rows) = (&x[i * ROWS * width..], c.len() / dm);
                        let (la, lc) = (Layout::rows(width), Layout::rows(dm));
                        Rows { a, la, rows, b: weight, c, lc, out: Out::Bias(bias.of(params)) }.run();
                    }),
                    _ => part.residuals[0].copy_from_slice(x),
                }
            }
        }
    }

    /// The backward pass of part `p` from its `d_temporal`; adds to `grads`.
    pub fn backward(
        &mut self,
        derived: &Derived,
        params: &[f32],
        p: usize,
        d_temporal: &[f32],
        grads: &mut [f32],
    ) {
        let mut times = std::mem::take(&mut self.times);
        for l in (0..=self.table.layers.len()).rev() {
            times.time(Phase::ProjectionsBackward, || {
                self.between_blocks_backward(derived, params, (p, l), d_temporal);
            });
            times.time(Phase::WeightGradients, || self.outer_weights(l, grads));
            if let Some(l) = l.checked_sub(1) {
                self.backward_block(derived, params, (p, l), grads, &mut times);
            }
        }
        times.time(Phase::Input, || self.input_weights(p, grads));
        self.times = times;
    }

    /// Norm and in_proj of block `l` (the final norm for the block past the last), out_proj of block `l - 1`.
    fn between_blocks_backward(
        &mut self,
        derived: &Derived,
        params: &[f32],
        (p, l): (usize, usize),
        d_temporal: &[f32],
    ) {
        let Self { dims: d, slots, table, shared, .. } = self;
        let Part { residuals, acts, kept, rstd_f, reset, .. } = &self.parts[p];
        let Some(buf) = &mut self.bwd else { return };
        let lower = l.checked_sub(1).and_then(|i| derived.layers[i].transposed.as_ref());
        let (upper, weight, rstd) = match derived.layers.get(l) {
            None => (Upper::Final { d_temporal }, table.norm_f, rstd_f),
            Some(weights) => {
                let Some(transposed) = &weights.transposed else { return };
                let xz = &acts.get(l).unwrap_or(shared).xz;
                let conv = block_fwd::conv_input(d, weights, xz, &kept[l].history, reset);
                (Upper::Block { conv, transposed }, table.layers[l].norm, &kept[l].rstd)
            }
        };
        let norm = NormOf { residual: &residuals[l], weight: weight.of(params), rstd };
        block_bwd::projections(d, slots, buf, &upper, &norm, lower);
    }

    fn outer_weights(&mut self, l: usize, grads: &mut [f32]) {
        let Some(buf) = &self.bwd else { return };
        match self.table.layers.get(l) {
            Some(layer) => block_bwd::outer_weights(&self.dims, buf, layer, grads),
            None => {
                block_bwd::add_rows(&buf.norm_sums, self.dims.d_model, self.table.norm_f.of_mut(grads));
            }
        }
    }

    fn backward_block(
        &mut self,
        derived: &Derived,
        params: &[f32],
        (p, l): (usize, usize),
        grads: &mut [f32],
        times: &mut PhaseTimes,
    ) {
        if self.mode == Mode::Recompute {
            times.time(Phase::Conv, || self.recompute(&derived.layers[l], params, (p, l)));
        }
        let Self { dims: d, slots, table, shared, gated, .. } = self;
        let Part { acts, kept, reset, .. } = &self.parts[p];
        let Some(buf) = &mut self.bwd else { return };
        let weights = &derived.layers[l];
        let Some(transposed) = &weights.transposed else { return };
        let (acts, kept, layer) = (acts.get(l).unwrap_or(shared), &kept[l], &table.layers[l]);
        times.time(Phase::ScanBackward, || {
            let view = ScanView { weights, acts, reset };
            block_bwd::scan(d, slots, buf, gated, &view, &kept.states);
        });
        times.time(Phase::ConvBackward, || {
            block_bwd::convolve(d, buf, (weights, transposed), (&kept.history, reset), acts);
        });
        times.time(Phase::WeightGradients, || {
            block_bwd::inner_weights(d, buf, gated, acts, layer, grads);
            block_bwd::vectors(d, buf, weights, layer, grads);
        });
    }

    /// The activations of block `l` again.
    fn recompute(&mut self, weights: &LayerWeights, params: &[f32], (p, l): (usize, usize)) {
        let Self { dims: d, slots, table, shared, .. } = self;
        let Part { residuals, kept, reset, .. } = &self.parts[p];
        let (kept, residual, dm) = (&kept[l], &residuals[l], d.d_model);
        let (weight, layout) = (table.layers[l].norm.of(params), Layout::rows(dm));
        shared.xz.par_chunks_mut(2 * row_task(d.d_inner)).enumerate().for_each(|(i, xz)| {
            slots.with(|scratch| {
                let (first, rows) = (i * ROWS, ROWS.min(d.tokens - i * ROWS));
                let n = &mut scratch.narrow[..];
                let (x, rstd) = (&residual[first * dm..][..rows * dm], &kept.rstd[first..][..rows]);
                NormAgain { x, weight, rstd, y: n, layout }.run();
                block_fwd::in_proj(weights, (n, layout), rows, xz);
            });
        });
        block_fwd::convolve(d, weights, &kept.history, reset, shared);
    }

    /// Gradients of the embedding's lookup or of the input projection.
    fn input_weights(&mut self, p: usize, grads: &mut [f32]) {
        let (d, part) = (&self.dims, &self.parts[p]);
        let Some(buf) = &mut self.bwd else { return };
        let dm = d.d_model;
        if let Some(span) = self.table.embedding {
            let embedding = span.of_mut(grads);
            for (&id, dr) in part.ids.iter().zip(buf.dr.chunks_exact(dm)) {
                let row = &mut embedding[id as usize * dm..][..dm];
                row.iter_mut().zip(dr).for_each(|(o, v)| *o += v);
            }
        }
        if let Some((weight, bias)) = self.table.input_proj {
            let tiles = buf.dr_tiled.par_chunks_mut(row_task(dm));
            tiles
                .zip(buf.dr.par_chunks(ROWS * dm))
                .for_each(|(tiles, dr)| block_bwd::to_tiles(dr, dm, tiles));
            let x = Matrix::rows(&part.dense, d.input_width);
            let y = Matrix::tiled(&buf.dr_tiled, dm.div_ceil(GROUP), 0);
            block_bwd::weight(d.tokens, x, y, dm, weight.of_mut(grads));
            block_bwd::add_rows(&buf.dr, dm, bias.of_mut(grads));
        }
    }

    /// Gradient of a part's dense input, after its [`Engine::backward`].
    pub fn input_gradient(&mut self, derived: &Derived, d_input: &mut [f32]) {
        let Some(buf) = &self.bwd else { return };
        let (dm, width) = (self.dims.d_model, self.dims.input_width);
        match &derived.input {
            None => d_input.copy_from_slice(&buf.dr),
            Some((_, transposed)) => {
                d_input.par_chunks_mut(ROWS * width).enumerate().for_each(|(i, c)| {
                    let (a, rows) = (&buf.dr[i * ROWS * dm..], c.len() / width);
                    let (la, lc) = (Layout::rows(dm), Layout::rows(width));
                    Rows { a, la, rows, b: transposed, c, lc, out: Out::Set }.run();
                });
            }
        }
    }
}

impl Part {
    fn set_resets(&mut self, reset: Option<&[u8]>, seq: usize) {
        match reset {
            Some(mask) => self.reset.copy_from_slice(mask),
            None => self.reset.fill(0),
        }
        for (start, row) in self.last_start.iter_mut().zip(self.reset.chunks_exact(seq)) {
            *start = row.iter().rposition(|&r| r != 0);
        }
    }
}

/// Residual `l - 1` and residual `l`; the two take turns where no more are kept.
fn pair(residuals: &mut [Buffer], l: usize) -> (&[f32], &mut Buffer) {
    let n = residuals.len();
    let (before, at) = ((l + n - 1) % n, l % n);
    let (left, right) = residuals.split_at_mut(before.max(at));
    if before < at { (&left[before], &mut right[0]) } else { (&right[0], &mut left[at]) }
}

#[cfg(test)]
mod tests {
    use super::part_count;

    #[test]
    fn parts_are_whole_rows_of_about_a_thousand_tokens() {
        for ((batch, seq), parts) in
            [((8, 256), 2), ((4, 512), 2), ((1, 65_536), 1), ((8, 2048), 8), ((7, 256), 1), ((64, 1), 1)]
        {
            assert_eq!(part_count(batch, seq), parts, "{batch} × {seq}");
        }
    }
}
