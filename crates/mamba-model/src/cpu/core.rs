//! Buffers of the engine and the order of its phases.

use super::block_bwd::{self, BwdBuffers, NormOf, Upper};
use super::block_fwd::{self, Activations, Next, Previous, ScanOut, ScanView, Scratch};
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
    rstd: Vec<f32>,
    /// Samples before the window, `[batch, d_conv - 1, wide]`.
    history: Vec<f32>,
    /// Scan states before each chunk, `[group, batch, chunk, block, states, lanes]`.
    states: Vec<f32>,
}

/// The input of the last forward pass; host buffers may be gone by the time of the backward pass.
#[derive(Debug, Default)]
struct InputCopy {
    ids: Vec<u32>,
    dense: Vec<f32>,
}

/// The engine without its weights and threads.
#[derive(Debug)]
pub(super) struct Core {
    pub config: ModelConfig,
    pub table: Arc<ParamTable>,
    pub dims: Dims,
    pub mode: Mode,
    pub slots: Slots<Scratch>,
    pub times: PhaseTimes,
    /// Model output `[tokens, d_model]`.
    pub temporal: Vec<f32>,
    pub bwd: Option<BwdBuffers>,
    input: InputCopy,
    /// Input of every block and of the final norm; two, taken in turns, where nothing is kept.
    residuals: Vec<Vec<f32>>,
    acts: Vec<Activations>,
    kept: Vec<Kept>,
    rstd_f: Vec<f32>,
    gated: Vec<f32>,
    h: Vec<f32>,
    reset: Vec<u8>,
    /// Last document start of each batch row.
    last_start: Vec<Option<usize>>,
}

impl Core {
    pub fn new(config: &ModelConfig, table: Arc<ParamTable>, dims: Dims, mode: Mode, threads: usize) -> Self {
        let layers = config.backbone.n_layers;
        let train = mode != Mode::Infer;
        let mut core = Self {
            config: config.clone(),
            table,
            dims,
            mode,
            slots: Slots::new(threads, || Scratch::new(&dims, train)),
            times: PhaseTimes::default(),
            temporal: Vec::new(),
            bwd: train.then(|| BwdBuffers::new(&dims)),
            input: InputCopy::default(),
            residuals: vec![Vec::new(); if train { layers + 1 } else { 2 }],
            acts: Vec::new(),
            kept: Vec::new(),
            rstd_f: Vec::new(),
            gated: Vec::new(),
            h: Vec::new(),
            reset: Vec::new(),
            last_start: vec![None; dims.batch],
        };
        core.acts.resize_with(if mode == Mode::Keep { layers } else { 1 }, Activations::default);
        core.kept.resize_with(if train { layers } else { 1 }, Kept::default);
        core.resize(dims);
        core
    }

    /// Sets the window's size; allocates only beyond the largest size so far.
    pub fn resize(&mut self, d: Dims) {
        self.dims = d;
        let train = self.mode != Mode::Infer;
        let m = d.tokens;
        self.temporal.resize(m * d.d_model, 0.0);
        self.residuals.iter_mut().for_each(|r| r.resize(m * d.d_model, 0.0));
        self.acts.iter_mut().for_each(|a| a.resize(&d));
        let states = d.batch * d.groups * d.group_state();
        for kept in &mut self.kept {
            kept.rstd.resize(m, 0.0);
            kept.history.resize(d.batch * (d.d_conv - 1) * d.wide(), 0.0);
            kept.states.resize(if train { states * d.chunks } else { 0 }, 0.0);
        }
        self.rstd_f.resize(m, 0.0);
        self.gated.resize(d.grouped(), 0.0);
        self.h.resize(states, 0.0);
        self.reset.resize(m, 0);
        match self.config.lm {
            Some(_) => self.input.ids.resize(m, 0),
            None => self.input.dense.resize(m * d.input_width, 0.0),
        }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        let acts: usize = self.acts.iter().map(Activations::len).sum();
        let kept = |k: &Kept| k.rstd.capacity() + k.history.capacity() + k.states.capacity();
        let kept: usize = self.kept.iter().map(kept).sum();
        let rows: usize = self.residuals.iter().map(Vec::capacity).sum();
        let rest = self.temporal.capacity() + self.rstd_f.capacity() + self.gated.capacity();
        let input = self.input.ids.capacity() + self.input.dense.capacity() + self.h.capacity();
        let scratch = self.slots.with(|s| s.len()) * self.slots.len();
        let bwd = self.bwd.as_ref().map_or(0, BwdBuffers::len);
        4 * (acts + kept + rows + rest + input + scratch + bwd) + self.reset.capacity()
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
        self.set_resets(reset);
        let mut times = std::mem::take(&mut self.times);
        times.time(Phase::Input, || self.embed(derived, params, input));
        for l in 0..self.table.layers.len() {
            self.forward_block(derived, params, l, state, &mut times);
        }
        times.time(Phase::Projections, || self.final_norm(derived, params));
        self.times = times;
    }

    fn forward_block(
        &mut self,
        derived: &Derived,
        params: &[f32],
        l: usize,
        state: &mut RecurrentState,
        times: &mut PhaseTimes,
    ) {
        let Self { dims: d, slots, table, residuals, acts, kept, gated, h, reset, .. } = self;
        let back = d.d_conv - 1;
        let weights = &derived.layers[l];
        let (conv_size, ssm_size) = (d.batch * d.d_inner * back, d.batch * d.d_inner * d.d_state);
        let conv_state = &mut state.conv[l * conv_size..][..conv_size];
        let ssm_state = &mut state.ssm[l * ssm_size..][..ssm_size];
        let acts = at_or_last(acts, l);
        let kept = at_or_last(kept, l);

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
            ssm_state.par_chunks_mut(d.d_inner * d.d_state).enumerate().for_each(|(b, out)| {
                super::scan_fwd::store_state(d, h, b, out);
            });
            let input = block_fwd::conv_input(d, weights, &acts.xz, &kept.history, reset);
            for (b, &last_start) in self.last_start.iter().enumerate() {
                let size = d.d_inner * back;
                conv::state_out(&input, b, last_start, &mut conv_state[b * size..][..size]);
            }
        });
    }

    /// The last block's output and the final norm.
    fn final_norm(&mut self, derived: &Derived, params: &[f32]) {
        let Self { dims: d, slots, table, residuals, gated, .. } = self;
        let layers = table.layers.len();
        let (before, residual) = pair(residuals, layers);
        let last = layers - 1;
        let previous = Previous {
            residual: before,
            gated,
            out_proj: &derived.layers[last].out_proj,
            out_proj_bias: table.layers[last].out_proj_bias.map(|span| span.of(params)),
        };
        let next = Next::Temporal { norm: table.norm_f.of(params), temporal: &mut self.temporal };
        let eps = self.config.backbone.rms_norm_eps;
        block_fwd::projections(d, slots, eps, Some(&previous), residual, &mut self.rstd_f, next);
    }

    /// The first block's input: embedding rows, projected input, or the input itself.
    fn embed(&mut self, derived: &Derived, params: &[f32], input: ModelInput<'_>) {
        let (dm, width) = (self.dims.d_model, self.dims.input_width);
        let rows = self.residuals[0].par_chunks_mut(ROWS * dm).enumerate();
        match input {
            ModelInput::Tokens(ids) => {
                self.input.ids.copy_from_slice(ids);
                let Some(span) = self.table.embedding else { return };
                let embedding = span.of(params);
                rows.for_each(|(i, rows)| {
                    for (row, &id) in rows.chunks_exact_mut(dm).zip(&ids[i * ROWS..]) {
                        row.copy_from_slice(&embedding[id as usize * dm..][..dm]);
                    }
                });
            }
            ModelInput::Dense(x) => {
                self.input.dense.copy_from_slice(x);
                match (&derived.input, self.table.input_proj) {
                    (Some((weight, _)), Some((_, bias))) => rows.for_each(|(i, c)| {
                        let (a, rows) = (&x[i * ROWS * width..], c.len() / dm);
                        let (la, lc) = (Layout::rows(width), Layout::rows(dm));
                        Rows { a, la, rows, b: weight, c, lc, out: Out::Bias(bias.of(params)) }.run();
                    }),
                    _ => self.residuals[0].copy_from_slice(x),
                }
            }
        }
    }

    fn set_resets(&mut self, reset: Option<&[u8]>) {
        match reset {
            Some(mask) => self.reset.copy_from_slice(mask),
            None => self.reset.fill(0),
        }
        let rows = self.reset.chunks_exact(self.dims.seq);
        for (start, row) in self.last_start.iter_mut().zip(rows) {
            *start = row.iter().rposition(|&r| r != 0);
        }
    }

    /// The backward pass from `d_temporal`; adds to `grads`, leaves the gradient of the first block's input in `dr`.
    pub fn backward(&mut self, derived: &Derived, params: &[f32], d_temporal: &[f32], grads: &mut [f32]) {
        let mut times = std::mem::take(&mut self.times);
        let layers = self.table.layers.len();
        for l in (0..=layers).rev() {
            times.time(Phase::ProjectionsBackward, || {
                self.between_blocks_backward(derived, params, d_temporal, l);
            });
            times.time(Phase::WeightGradients, || self.outer_weights(l, grads));
            if let Some(l) = l.checked_sub(1) {
                self.backward_block(derived, params, l, grads, &mut times);
            }
        }
        times.time(Phase::Input, || self.input_weights(grads));
        self.times = times;
    }

    /// Norm and in_proj of block `l` (the final norm for the block past the last), out_proj of block `l - 1`.
    fn between_blocks_backward(&mut self, derived: &Derived, params: &[f32], d_temporal: &[f32], l: usize) {
        let Self { dims: d, slots, table, residuals, acts, kept, reset, .. } = self;
        let Some(buf) = &mut self.bwd else { return };
        let lower = l.checked_sub(1).and_then(|i| derived.layers[i].transposed.as_ref());
        let residual = &residuals[l];
        let (upper, weight, rstd) = match derived.layers.get(l) {
            None => (Upper::Final { d_temporal }, table.norm_f, &self.rstd_f),
            Some(weights) => {
                let Some(transposed) = &weights.transposed else { return };
                let acts = at_or_last(acts, l);
                let conv = block_fwd::conv_input(d, weights, &acts.xz, &kept[l].history, reset);
                (Upper::Block { conv, transposed }, table.layers[l].norm, &kept[l].rstd)
            }
        };
        let norm = NormOf { residual, weight: weight.of(params), rstd };
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
        l: usize,
        grads: &mut [f32],
        times: &mut PhaseTimes,
    ) {
        if self.mode == Mode::Recompute {
            times.time(Phase::Conv, || self.recompute(&derived.layers[l], params, l));
        }
        let Self { dims: d, slots, table, acts, kept, gated, reset, .. } = self;
        let Some(buf) = &mut self.bwd else { return };
        let weights = &derived.layers[l];
        let Some(transposed) = &weights.transposed else { return };
        let (acts, kept, layer) = (at_or_last(acts, l), &kept[l], &table.layers[l]);
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
    fn recompute(&mut self, weights: &LayerWeights, params: &[f32], l: usize) {
        let Self { dims: d, slots, table, residuals, acts, kept, reset, .. } = self;
        let (acts, kept, dm) = (at_or_last(acts, l), &kept[l], d.d_model);
        let weight = table.layers[l].norm.of(params);
        let residual = &residuals[l];
        let layout = Layout::rows(dm);
        acts.xz.par_chunks_mut(2 * row_task(d.d_inner)).enumerate().for_each(|(i, xz)| {
            slots.with(|scratch| {
                let (first, rows) = (i * ROWS, ROWS.min(d.tokens - i * ROWS));
                let n = &mut scratch.narrow[..];
                let (x, rstd) = (&residual[first * dm..][..rows * dm], &kept.rstd[first..][..rows]);
                NormAgain { x, weight, rstd, y: n, layout }.run();
                block_fwd::in_proj(weights, (n, layout), rows, xz);
            });
        });
        block_fwd::convolve(d, weights, &kept.history, reset, acts);
    }

    /// Gradients of the embedding's lookup or of the input projection.
    fn input_weights(&mut self, grads: &mut [f32]) {
        let Some(buf) = &mut self.bwd else { return };
        let (dm, tokens) = (self.dims.d_model, self.dims.tokens);
        if let Some(span) = self.table.embedding {
            let embedding = span.of_mut(grads);
            for (&id, dr) in self.input.ids.iter().zip(buf.dr.chunks_exact(dm)) {
                let row = &mut embedding[id as usize * dm..][..dm];
                row.iter_mut().zip(dr).for_each(|(o, v)| *o += v);
            }
        }
        if let Some((weight, bias)) = self.table.input_proj {
            let tiles = buf.dr_tiled.par_chunks_mut(row_task(dm));
            tiles
                .zip(buf.dr.par_chunks(ROWS * dm))
                .for_each(|(tiles, dr)| block_bwd::to_tiles(dr, dm, tiles));
            let x = Matrix::rows(&self.input.dense, self.dims.input_width);
            let y = Matrix::tiled(&buf.dr_tiled, dm.div_ceil(GROUP), 0);
            block_bwd::weight(tokens, x, y, dm, weight.of_mut(grads));
            block_bwd::add_rows(&buf.dr, dm, bias.of_mut(grads));
        }
    }

    /// Gradient of a dense input, after [`Core::backward`].
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

fn at_or_last<T>(items: &mut [T], i: usize) -> &mut T {
    let last = items.len() - 1;
    &mut items[i.min(last)]
}

/// Residual `l - 1` and residual `l`; the two take turns where no more are kept.
fn pair(residuals: &mut [Vec<f32>], l: usize) -> (&[f32], &mut Vec<f32>) {
    let n = residuals.len();
    let (before, at) = ((l + n - 1) % n, l % n);
    let (left, right) = residuals.split_at_mut(before.max(at));
    if before < at { (&left[before], &mut right[0]) } else { (&right[0], &mut left[at]) }
}
