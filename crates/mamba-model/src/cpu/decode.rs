use super::buffer::Buffer;
use super::derived::Derived;
use super::dims::Dims;
use super::engine::{Engine, Mode};
use super::gemm::{Layout, Out, Rows};
use super::model::{CpuOptions, check_state, check_window, no_head};
use super::pool::Pool;
use crate::error::{ModelError, Result};
use crate::input::ModelInput;
use crate::params::MambaWeights;
use crate::state::RecurrentState;

/// Tokens of a prompt that are run at a time.
const PREFILL: usize = 64;

/// A language model that is fed token by token, for `batch` sequences side by side.
///
/// Token by token, a prompt at once, and any mixture of the two give the same bits.
#[derive(Debug)]
pub struct CpuDecoder {
    pool: Pool,
    engine: Engine,
    derived: Derived,
    params: Vec<f32>,
    state: RecurrentState,
    ids: Vec<u32>,
    logits: Buffer,
}

impl CpuDecoder {
    /// A decoder with a copy of the weights, at the start of a sequence.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] without a head, [`ModelError::Config`] for an empty batch,
    /// [`ModelError::Threads`].
    pub fn new(weights: &MambaWeights, batch: usize, options: &CpuOptions) -> Result<Self> {
        let config = weights.config();
        if config.lm.is_none() {
            return Err(no_head("decoding"));
        }
        check_window(config, batch, PREFILL)?;
        let pool = Pool::new(options.threads)?;
        let dims = Dims::new(config, batch, PREFILL);
        let table = weights.table().clone();
        let mut derived = Derived::new(&dims, &table, false);
        pool.run(|| derived.refresh(&dims, &table, weights.arena()));
        let state = RecurrentState::zeros(&config.backbone, batch);
        Ok(Self {
            engine: Engine::new(config, table, (dims, 1), Mode::Infer, pool.threads()),
            pool,
            derived,
            params: weights.arena().to_vec(),
            state,
            ids: Vec::with_capacity(batch * PREFILL),
            logits: Buffer::zeros(batch * dims.vocab_rows),
        })
    }

    /// Feeds `[batch, n]` tokens, n ≥ 1; gives the logits after the last, `[batch, rows]`.
    ///
    /// # Errors
    /// [`ModelError::Length`] where the length is no multiple of the batch, [`ModelError::Token`]; the state stays.
    pub fn prefill(&mut self, ids: &[u32]) -> Result<&[f32]> {
        let batch = self.engine.dims.batch;
        if ids.is_empty() || !ids.len().is_multiple_of(batch) {
            let expected = ids.len().next_multiple_of(batch).max(batch);
            return Err(ModelError::Length { name: "ids", got: ids.len(), expected, layout: "[batch, n]" });
        }
        let seq = ids.len() / batch;
        ModelInput::Tokens(ids).check(&self.engine.config, batch, seq)?;
        for first in (0..seq).step_by(PREFILL) {
            let len = PREFILL.min(seq - first);
            self.ids.clear();
            for row in ids.chunks_exact(seq) {
                self.ids.extend_from_slice(&row[first..first + len]);
            }
            self.window(len);
        }
        self.project();
        Ok(&self.logits)
    }

    /// Feeds one token a sequence, `[batch]`; gives the logits after it, `[batch, rows]`.
    ///
    /// # Errors
    /// Those of [`prefill`](Self::prefill).
    pub fn step(&mut self, ids: &[u32]) -> Result<&[f32]> {
        let batch = self.engine.dims.batch;
        if ids.len() != batch {
            return Err(ModelError::Length {
                name: "ids",
                got: ids.len(),
                expected: batch,
                layout: "[batch]",
            });
        }
        self.prefill(ids)
    }

    /// What the decoder carries.
    pub fn state(&self) -> &RecurrentState {
        &self.state
    }

    /// Goes on from another state.
    ///
    /// # Errors
    /// [`ModelError::Length`]; the state stays.
    pub fn load_state(&mut self, state: &RecurrentState) -> Result<()> {
        check_state(&self.engine.config, state, self.engine.dims.batch)?;
        self.state.conv.copy_from_slice(&state.conv);
        self.state.ssm.copy_from_slice(&state.ssm);
        Ok(())
    }

    /// Back to the start of a sequence.
    pub fn reset(&mut self) {
        self.state.reset();
    }

    fn window(&mut self, seq: usize) {
        let Self { pool, engine, derived, params, state, ids, .. } = self;
        if engine.dims.seq != seq {
            engine.resize(Dims::new(&engine.config, engine.dims.batch, seq));
        }
        pool.run(|| engine.forward(derived, params, ModelInput::Tokens(ids), None, state));
    }

    /// Logits of every sequence's last token.
    fn project(&mut self) {
        let d = self.engine.dims;
        let Some((head, _)) = &self.derived.head else { return };
        let last = &self.engine.temporal[(d.seq - 1) * d.d_model..];
        let (la, lc) = (Layout::spaced(d.d_model, d.seq * d.d_model), Layout::rows(d.vocab_rows));
        Rows { a: last, la, rows: d.batch, b: head, c: &mut self.logits, lc, out: Out::Set }.run();
    }
}
