use super::batch::Input;
use super::model::{CudaModel, no_head};
use super::products::Arithmetic;
use super::state::DeviceState;
use super::weights::DeviceWeights;
use crate::error::{ModelError, Result};
use crate::input::ModelInput;
use crate::params::MambaWeights;
use crate::state::RecurrentState;
use mamba_cuda::{Capture, DeviceBuf, Graph, PinnedReadback};
use mamba_kernels::{Elem, Kernels};

/// Tokens of a prompt that are run at a time.
const PREFILL: usize = 256;

/// A language model on a GPU that is fed token by token, for `batch` sequences side by side.
///
/// A token is one captured graph. Two take turns, since the state is read from one buffer and written to another. A
/// prompt at once and token by token agree up to rounding.
#[derive(Debug)]
pub struct CudaDecoder<T: Elem> {
    // Fields are dropped in this order: the graphs before what they touch.
    graphs: [Option<Graph>; 2],
    /// Which of them fits the buffers as they are.
    turn: usize,
    model: CudaModel<T>,
    weights: DeviceWeights<T>,
    state: DeviceState,
    ids: DeviceBuf<u32>,
    logits: DeviceBuf<f32>,
    host_logits: PinnedReadback<f32>,
    host_ids: Vec<u32>,
    config: crate::ModelConfig,
    batch: usize,
    kernels: Kernels,
}

impl<T: Elem> CudaDecoder<T> {
    /// A decoder with a copy of the weights, at the start of a sequence.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] without a head, [`ModelError::Config`] for an empty batch,
    /// [`ModelError::Kernel`] for too little memory.
    pub fn new(
        kernels: &Kernels,
        weights: &MambaWeights,
        batch: usize,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        let (gpu, config) = (kernels.gpu(), weights.config().clone());
        let rows = config.lm.as_ref().ok_or_else(no_head)?.rows();
        Ok(Self {
            graphs: [None, None],
            turn: 0,
            model: CudaModel::for_inference(kernels, &config, batch, PREFILL, arithmetic)?,
            weights: DeviceWeights::new(kernels, weights)?,
            state: DeviceState::new(gpu, &config.backbone, batch)?,
            ids: DeviceBuf::zeros(gpu, batch * PREFILL)?,
            logits: DeviceBuf::zeros(gpu, batch * rows)?,
            host_logits: PinnedReadback::new(gpu, batch * rows)?,
            host_ids: Vec::with_capacity(batch * PREFILL),
            config,
            batch,
            kernels: kernels.clone(),
        })
    }

    /// Feeds `[batch, n]` tokens, n ≥ 1; gives the logits after the last, `[batch, rows]`.
    ///
    /// # Errors
    /// [`ModelError::Length`] where the length is no multiple of the batch, [`ModelError::Token`]: the state stays.
    /// Those of the device.
    pub fn prefill(&mut self, ids: &[u32]) -> Result<&[f32]> {
        let batch = self.batch;
        if ids.is_empty() || !ids.len().is_multiple_of(batch) {
            let expected = ids.len().next_multiple_of(batch).max(batch);
            return Err(ModelError::Length { name: "ids", got: ids.len(), expected, layout: "[batch, n]" });
        }
        let seq_len = ids.len() / batch;
        ModelInput::Tokens(ids).check(&self.config, batch, seq_len)?;
        if seq_len == 1 {
            return self.token(ids);
        }
        for first in (0..seq_len).step_by(PREFILL) {
            let len = PREFILL.min(seq_len - first);
            self.host_ids.clear();
            for row in ids.chunks_exact(seq_len) {
                self.host_ids.extend_from_slice(&row[first..first + len]);
            }
            let target = self.ids.view_mut().slice(0..self.host_ids.len());
            target?.write(&self.host_ids, self.kernels.gpu().compute())?;
            self.advance();
            self.enqueue(len)?;
        }
        self.read()
    }

    /// Feeds one token a sequence, `[batch]`; gives the logits after it, `[batch, rows]`.
    ///
    /// # Errors
    /// Those of [`prefill`](Self::prefill).
    pub fn step(&mut self, ids: &[u32]) -> Result<&[f32]> {
        if ids.len() != self.batch {
            let (got, expected) = (ids.len(), self.batch);
            return Err(ModelError::Length { name: "ids", got, expected, layout: "[batch]" });
        }
        self.prefill(ids)
    }

    /// One checked token a sequence: the first two times eagerly, which loads the kernels, then as a graph.
    fn token(&mut self, ids: &[u32]) -> Result<&[f32]> {
        let stream = self.kernels.gpu().compute().clone();
        self.ids.view_mut().slice(0..ids.len())?.write(ids, &stream)?;
        self.advance();
        if let Some(graph) = &self.graphs[self.turn] {
            graph.launch()?;
            return self.read();
        }
        self.enqueue(1)?;
        let capture = Capture::begin(&stream)?;
        self.enqueue(1)?;
        self.graphs[self.turn] = Some(capture.end()?);
        self.read()
    }

    /// The state of the last window becomes what the next one reads.
    fn advance(&mut self) {
        self.state.swap();
        self.turn = 1 - self.turn;
    }

    /// One window of the tokens in `ids`.
    fn enqueue(&mut self, seq_len: usize) -> Result<()> {
        let Self { model, weights, state, ids, logits, batch, .. } = self;
        let weights = weights.view();
        model.set_seq_len(seq_len)?;
        let ids = Input::Ids(ids.view().slice(0..*batch * seq_len)?);
        model.run_forward(weights, ids, None, Some(state))?;
        model.last_logits(&weights, logits)
    }

    fn read(&mut self) -> Result<&[f32]> {
        Ok(self.host_logits.read(self.logits.view(), self.kernels.gpu().compute())?)
    }

    /// What the decoder carries; waits.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn state(&self) -> Result<RecurrentState> {
        self.state.read()
    }

    /// Goes on from another state.
    ///
    /// # Errors
    /// [`ModelError::Length`]; the state stays.
    pub fn load_state(&mut self, state: &RecurrentState) -> Result<()> {
        self.state.write(Some(state))
    }

    /// Back to the start of a sequence.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn reset(&mut self) -> Result<()> {
        self.state.write(None)
    }
}
