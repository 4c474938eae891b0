use super::block_bwd;
use super::buffer::Buffer;
use super::derived::Derived;
use super::dims::{Dims, GROUP, ROWS, row_task};
use super::engine::{Engine, Mode, part_count};
use super::gemm::{Layout, Matrix, Out, Rows};
use super::loss::CrossEntropy;
use super::pool::Pool;
use super::profile::{Phase, PhaseTimes};
use crate::config::{LmHeadConfig, ModelConfig};
use crate::error::{ModelError, Result};
use crate::input::{IGNORE_INDEX, LossSums, ModelInput, check_len};
use crate::params::ParamTable;
use crate::state::RecurrentState;
use rayon::prelude::*;
use std::sync::Arc;

/// How an engine runs. Results do not depend on any of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuOptions {
    /// Threads of its own; `None`: the global pool, all cores.
    pub threads: Option<usize>,
    /// Keep a block's input and scan states only, and compute the other activations again in the backward pass.
    pub recompute: bool,
}

/// Logits that exist at a time, in elements, beyond one row task.
const LOGITS: usize = 1 << 18;

/// Buffers of head and loss.
#[derive(Debug, Default)]
struct LossBuffers {
    /// Logits of some tokens, then their gradient; tiled `[tokens, rows]`.
    logits: Buffer,
    /// Loss of every token.
    nll: Vec<f64>,
    d_temporal: Buffer,
}

/// A model that trains on the CPU in f32. All memory is taken in [`CpuModel::new`].
///
/// Order of calls: [`refresh`](Self::refresh) after every change of the parameters, then
/// [`forward`](Self::forward), then [`backward`](Self::backward) or [`loss_backward`](Self::loss_backward) once.
///
/// ```
/// use mamba_model::cpu::{CpuModel, CpuOptions};
/// use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput, RecurrentState};
///
/// let config = ModelConfig::language_model(MambaConfig::new(64, 2), LmHeadConfig::new(256));
/// let mut params = MambaWeights::init(&config, 7)?.into_arena();
/// let mut grads = vec![0.0f32; params.len()];
/// let mut model = CpuModel::new(&config, 1, 4, &CpuOptions::default())?;
/// let mut state = RecurrentState::zeros(&config.backbone, 1);
///
/// model.refresh(&params)?;
/// model.forward(&params, ModelInput::Tokens(&[1, 2, 3, 4]), None, &mut state)?;
/// let loss = model.loss_backward(&params, &[2, 3, 4, 5], None, 0.25, &mut grads)?;
/// assert_eq!(loss.tokens, 4);
/// params.iter_mut().zip(&grads).for_each(|(p, g)| *p -= 0.1 * g);
/// # Ok::<(), mamba_model::ModelError>(())
/// ```
#[derive(Debug)]
pub struct CpuModel {
    pool: Pool,
    /// Sizes of the whole window; `engine` works on parts of it.
    window: Dims,
    engine: Engine,
    derived: Derived,
    loss: LossBuffers,
    refreshed: bool,
    /// A forward pass whose output is there.
    ready: bool,
    /// A forward pass whose activations no backward pass has used.
    pending: bool,
}

impl CpuModel {
    /// An engine for windows of `batch × seq_len` tokens.
    ///
    /// # Errors
    /// [`ModelError::Config`] for sizes out of range, [`ModelError::TooLarge`], [`ModelError::Threads`].
    pub fn new(config: &ModelConfig, batch: usize, seq_len: usize, options: &CpuOptions) -> Result<Self> {
        let table = Arc::new(ParamTable::new(config)?);
        check_window(config, batch, seq_len)?;
        let pool = Pool::new(options.threads)?;
        let window = Dims::new(config, batch, seq_len);
        let parts = part_count(batch, seq_len);
        let dims = Dims::new(config, batch / parts, seq_len);
        let mode = if options.recompute { Mode::Recompute } else { Mode::Keep };
        let derived = Derived::new(&dims, &table, true);
        let engine = Engine::new(config, table, (dims, parts), mode, pool.threads());
        let mut loss = LossBuffers::default();
        if config.lm.is_some() {
            let tasks = logits_tokens(&dims).div_ceil(ROWS);
            loss.logits = Buffer::zeros(tasks * row_task(dims.vocab_rows));
            loss.nll = vec![0.0; window.tokens];
            loss.d_temporal = Buffer::zeros(dims.tokens * dims.d_model);
        }
        Ok(Self { pool, window, engine, derived, loss, refreshed: false, ready: false, pending: false })
    }

    /// Recomputes what is derived from the parameters: A = -exp(A_log), packed weights. To be called after every
    /// change of the parameters.
    ///
    /// # Errors
    /// [`ModelError::Length`] for another length than the table's arena.
    pub fn refresh(&mut self, params: &[f32]) -> Result<()> {
        self.check_arena("params", params.len())?;
        let Self { pool, engine, derived, .. } = self;
        pool.run(|| {
            let (dims, table) = (&engine.dims, &engine.table);
            engine.times.time(Phase::Refresh, || derived.refresh(dims, table, params));
        });
        self.refreshed = true;
        self.pending = false;
        Ok(())
    }

    /// Runs one window. `reset` is `[batch, seq_len]` with 1 at the first token of a document: the state starts from
    /// zero there and no gradient crosses. `state` moves on, on success only.
    ///
    /// # Errors
    /// [`ModelError::Length`], [`ModelError::Token`], [`ModelError::Unsupported`] (wrong kind of input, no refresh).
    pub fn forward(
        &mut self,
        params: &[f32],
        input: ModelInput<'_>,
        reset: Option<&[u8]>,
        state: &mut RecurrentState,
    ) -> Result<()> {
        let d = self.window;
        self.pending = false;
        self.check_arena("params", params.len())?;
        if !self.refreshed {
            return Err(missing("forward", "a refresh with the parameters before it"));
        }
        input.check(&self.engine.config, d.batch, d.seq)?;
        if let Some(reset) = reset {
            check_len("reset", reset.len(), d.tokens, "[batch, seq_len]")?;
        }
        check_state(&self.engine.config, state, d.batch)?;
        let Self { pool, engine, derived, .. } = self;
        pool.run(|| engine.forward(derived, params, input, reset, state));
        (self.ready, self.pending) = (true, true);
        Ok(())
    }

    /// Output of the last forward pass, `[batch, seq_len, d_model]`.
    pub fn temporal(&self) -> &[f32] {
        &self.engine.temporal
    }

    /// The backward pass of the last forward pass. Adds to `grads`, an arena of the parameters' layout; overwrites
    /// `d_input`, `[batch, seq_len, input_width]`.
    ///
    /// # Errors
    /// [`ModelError::Length`]; [`ModelError::Unsupported`] without a pending forward pass, or for an input gradient
    /// of token ids.
    pub fn backward(
        &mut self,
        params: &[f32],
        d_temporal: &[f32],
        grads: &mut [f32],
        d_input: Option<&mut [f32]>,
    ) -> Result<()> {
        let d = self.window;
        self.check_backward(params, grads)?;
        check_len("d_temporal", d_temporal.len(), d.tokens * d.d_model, "[batch, seq_len, d_model]")?;
        if let Some(d_input) = &d_input {
            if self.engine.config.lm.is_some() {
                return Err(ModelError::Unsupported {
                    call: "an input gradient",
                    needs: "a dense input",
                    has: "token ids",
                });
            }
            let needed = d.tokens * d.input_width;
            check_len("d_input", d_input.len(), needed, "[batch, seq_len, input_dim]")?;
        }
        let Self { pool, engine, derived, .. } = self;
        let (size, input_size) = (engine.dims.tokens * d.d_model, engine.dims.tokens * d.input_width);
        let mut d_input = d_input;
        pool.run(|| {
            for p in 0..engine.parts() {
                engine.backward(derived, params, p, &d_temporal[p * size..][..size], grads);
                if let Some(d_input) = &mut d_input {
                    engine.input_gradient(derived, &mut d_input[p * input_size..][..input_size]);
                }
            }
        });
        self.pending = false;
        Ok(())
    }

    /// Cross-entropy of the last forward pass. `targets[b, t]` is the token that position t must predict;
    /// [`IGNORE_INDEX`] does not count.
    ///
    /// # Errors
    /// [`ModelError::Length`], [`ModelError::Token`]; [`ModelError::Unsupported`] without head or forward pass.
    pub fn loss(&mut self, params: &[f32], targets: &[i32], weights: Option<&[f32]>) -> Result<LossSums> {
        self.check_loss(params, targets, weights)?;
        if !self.ready {
            return Err(missing("loss", "a forward pass before it"));
        }
        let Self { pool, engine, derived, loss, .. } = self;
        let batch = Targets { targets, weights };
        pool.run(|| (0..engine.parts()).for_each(|p| head(engine, derived, loss, p, batch, None)));
        Ok(batch.sums(&self.loss.nll))
    }

    /// Cross-entropy and the whole backward pass. The gradient is that of `grad_scale · Σ weight · nll`: not divided
    /// by the number of targets, since a window may be one of several micro-batches.
    ///
    /// # Errors
    /// Those of [`loss`](Self::loss); [`ModelError::Unsupported`] without a pending forward pass.
    pub fn loss_backward(
        &mut self,
        params: &[f32],
        targets: &[i32],
        weights: Option<&[f32]>,
        grad_scale: f32,
        grads: &mut [f32],
    ) -> Result<LossSums> {
        self.check_loss(params, targets, weights)?;
        self.check_backward(params, grads)?;
        let Self { pool, engine, derived, loss, .. } = self;
        let batch = Targets { targets, weights };
        pool.run(|| {
            for p in 0..engine.parts() {
                let into = HeadGrads { scale: grad_scale, arena: &mut *grads };
                head(engine, derived, loss, p, batch, Some(into));
                engine.backward(derived, params, p, &loss.d_temporal, grads);
            }
        });
        self.pending = false;
        Ok(batch.sums(&self.loss.nll))
    }

    /// Logits of the last forward pass, `[batch, seq_len, rows]`.
    ///
    /// # Errors
    /// [`ModelError::Length`]; [`ModelError::Unsupported`] without head or forward pass.
    pub fn logits(&mut self, params: &[f32], out: &mut [f32]) -> Result<()> {
        let d = self.window;
        self.check_arena("params", params.len())?;
        let Some((head, _)) = &self.derived.head else { return Err(no_head("logits")) };
        check_len("logits", out.len(), d.tokens * d.vocab_rows, "[batch, seq_len, rows]")?;
        if !self.ready {
            return Err(missing("logits", "a forward pass before it"));
        }
        let temporal = &self.engine.temporal;
        self.pool.run(|| {
            out.par_chunks_mut(ROWS * d.vocab_rows).enumerate().for_each(|(i, c)| {
                let (a, rows) = (&temporal[i * ROWS * d.d_model..], c.len() / d.vocab_rows);
                let (la, lc) = (Layout::rows(d.d_model), Layout::rows(d.vocab_rows));
                Rows { a, la, rows, b: head, c, lc, out: Out::Set }.run();
            });
        });
        Ok(())
    }

    /// Bytes of all buffers, the caller's arenas left out.
    pub fn memory_bytes(&self) -> usize {
        let LossBuffers { logits, nll, d_temporal } = &self.loss;
        let loss = logits.len() + 2 * nll.len() + d_temporal.len();
        self.engine.bytes() + 4 * (self.derived.len() + loss)
    }

    /// Time spent in each phase since the last call of this.
    pub fn take_phase_times(&mut self) -> PhaseTimes {
        std::mem::take(&mut self.engine.times)
    }

    fn check_arena(&self, name: &'static str, got: usize) -> Result<()> {
        check_len(name, got, self.engine.table.arena_len(), "flat arena, see ParamTable")
    }

    fn check_backward(&self, params: &[f32], grads: &[f32]) -> Result<()> {
        self.check_arena("params", params.len())?;
        self.check_arena("grads", grads.len())?;
        match self.pending {
            true => Ok(()),
            false => Err(missing("backward", "a forward pass before it, one for each backward pass")),
        }
    }

    fn check_loss(&self, params: &[f32], targets: &[i32], weights: Option<&[f32]>) -> Result<()> {
        let tokens = self.window.tokens;
        self.check_arena("params", params.len())?;
        let Some(lm) = &self.engine.config.lm else { return Err(no_head("loss")) };
        check_len("targets", targets.len(), tokens, "[batch, seq_len]")?;
        if let Some(weights) = weights {
            check_len("weights", weights.len(), tokens, "[batch, seq_len]")?;
        }
        let good = |&t: &i32| t == IGNORE_INDEX || usize::try_from(t).is_ok_and(|t| t < lm.vocab_size);
        match targets.iter().position(|t| !good(t)) {
            None => Ok(()),
            Some(index) => {
                let token = i64::from(targets[index]);
                Err(ModelError::Token { token, index, vocab_size: lm.vocab_size })
            }
        }
    }
}

/// Checks the state's lengths; its values may be anything.
pub(super) fn check_state(config: &ModelConfig, state: &RecurrentState, batch: usize) -> Result<()> {
    let (conv, ssm) = RecurrentState::lengths(&config.backbone, batch);
    check_len("state.conv", state.conv.len(), conv, "[n_layers, batch, d_inner, d_conv - 1]")?;
    check_len("state.ssm", state.ssm.len(), ssm, "[n_layers, batch, d_inner, d_state]")
}

/// Checks batch and sequence length against the address space.
pub(super) fn check_window(config: &ModelConfig, batch: usize, seq_len: usize) -> Result<()> {
    // Elements of the largest buffer, with room for the scan states.
    const LIMIT: usize = 1 << 44;
    let c = &config.backbone;
    let rows = config.lm.as_ref().map_or(0, LmHeadConfig::rows);
    let per_token = (4 * (c.d_inner() + 64) * (1 + c.d_state.div_ceil(8))).max(c.input_width()).max(rows);
    for (field, value) in [("batch", batch), ("seq_len", seq_len)] {
        if value == 0 {
            return Err(ModelError::Config { field, value: "0".into(), expected: "at least 1" });
        }
    }
    let total = batch.checked_mul(seq_len).and_then(|m| m.checked_mul(per_token));
    match total.is_some_and(|n| n <= LIMIT) {
        true => Ok(()),
        false => Err(ModelError::Config {
            field: "batch · seq_len",
            value: format!("{batch} · {seq_len}"),
            expected: "small enough for the activations to be addressable",
        }),
    }
}

pub(super) fn no_head(call: &'static str) -> ModelError {
    ModelError::Unsupported { call, needs: "a language model", has: "a bare backbone" }
}

fn missing(call: &'static str, needs: &'static str) -> ModelError {
    ModelError::Unsupported { call, needs, has: "none" }
}

/// Tokens whose logits exist at a time: a multiple of a row task, from sizes alone.
fn logits_tokens(d: &Dims) -> usize {
    (LOGITS / d.vocab_rows / ROWS * ROWS).max(ROWS).min(d.tokens)
}

/// Where the head's gradient goes.
struct HeadGrads<'a> {
    scale: f32,
    arena: &'a mut [f32],
}

/// What a loss compares with, for the whole window.
#[derive(Clone, Copy)]
struct Targets<'a> {
    targets: &'a [i32],
    weights: Option<&'a [f32]>,
}

impl Targets<'_> {
    fn sums(&self, nll: &[f64]) -> LossSums {
        let mut sums = LossSums::default();
        for (i, (&nll, &target)) in nll.iter().zip(self.targets).enumerate() {
            if target != IGNORE_INDEX {
                sums.nll += nll;
                sums.weight += self.weights.map_or(1.0, |w| f64::from(w[i]));
                sums.tokens += 1;
            }
        }
        sums
    }
}

/// Head and cross-entropy of part `p` by chunks of tokens; with `into`, their backward pass down to
/// `loss.d_temporal`.
fn head(
    engine: &mut Engine,
    derived: &Derived,
    loss: &mut LossBuffers,
    p: usize,
    batch: Targets<'_>,
    mut into: Option<HeadGrads<'_>>,
) {
    let d = engine.dims;
    let (dm, columns) = (d.d_model, d.vocab_rows);
    let Some((head, transposed)) = &derived.head else { return };
    let Some(buf) = &mut engine.bwd else { return };
    let span = engine.table.lm_head.or(engine.table.embedding);
    engine.times.time(Phase::Loss, || {
        for first in (0..d.tokens).step_by(logits_tokens(&d)) {
            let tokens = logits_tokens(&d).min(d.tokens - first);
            let tasks = tokens.div_ceil(ROWS);
            let start = p * d.tokens + first;
            let logits = &mut loss.logits[..tasks * row_task(columns)];
            let tiles = &mut buf.dr_tiled[..tasks * row_task(dm)];
            let temporal = &engine.temporal[start * dm..][..tokens * dm];
            let scale = into.as_ref().map(|g| g.scale);
            let rows = logits.par_chunks_mut(row_task(columns)).zip(tiles.par_chunks_mut(row_task(dm)));
            let rows = rows.zip(loss.nll[start..][..tokens].par_chunks_mut(ROWS));
            let rows = rows.zip(loss.d_temporal[first * dm..][..tokens * dm].par_chunks_mut(ROWS * dm));
            rows.enumerate().for_each(|(i, (((logits, tiles), nll), d_temporal))| {
                let (rows, at) = (nll.len(), start + i * ROWS);
                let a = &temporal[i * ROWS * dm..][..rows * dm];
                let (plain, tiled, out) = (Layout::rows(dm), Layout::TILED, Out::Set);
                Rows { a, la: plain, rows, b: head, c: logits, lc: tiled, out }.run();
                let (targets, weights) = (&batch.targets[at..], batch.weights.map(|w| &w[at..]));
                CrossEntropy { logits, columns, targets, weights, grad_scale: scale.unwrap_or(0.0), nll }
                    .run();
                if scale.is_some() {
                    block_bwd::to_tiles(a, dm, tiles);
                    Rows { a: logits, la: tiled, rows, b: transposed, c: d_temporal, lc: plain, out }.run();
                }
            });
            if let (Some(into), Some(span)) = (&mut into, span) {
                let x = Matrix::tiled(logits, columns.div_ceil(GROUP), 0);
                let y = Matrix::tiled(tiles, dm.div_ceil(GROUP), 0);
                block_bwd::weight(tokens, x, y, dm, span.of_mut(into.arena));
            }
        }
    });
}
