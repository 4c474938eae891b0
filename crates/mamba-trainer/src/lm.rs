//! Training of language models: embedding, blocks, head and cross-entropy on the device.

use crate::builder::TrainerBuilder;
use crate::contract::{Goal, Input};
use crate::dist::DistContext;
use crate::error::{Result, TrainerError};
use crate::metrics::{
    BackwardMetrics, BackwardOpts, LmStepMetrics, MicroBatchMetrics, StepMetrics, WindowOutcome,
};
use crate::session::TrainSessionCfg;
use crate::step::Objective;
use crate::trainer::{ModelKind, Trainer, sealed};
use mamba_model::{LossSums, MambaWeights, ModelConfig, ModelInput};

/// A backbone with embedding and head, trained on its cross-entropy.
#[derive(Debug, Clone, Copy)]
pub enum LanguageModel {}

impl ModelKind for LanguageModel {}

impl sealed::Kind for LanguageModel {
    const OBJECTIVE: Objective = Objective::Loss;

    fn check(model: &ModelConfig) -> Result<()> {
        match model.lm {
            Some(_) => Ok(()),
            None => Err(TrainerError::WrongModel {
                trainer: "LmTrainer",
                needs: "a language model",
                has: "a bare backbone; use MambaTrainer",
            }),
        }
    }
}

/// Trains a language model on its cross-entropy.
///
/// The gradient is that of the mean loss over the counted tokens of the whole window: micro-batches with unequal
/// numbers of counted tokens, or unequal weights, are averaged as one batch would be.
pub type LmTrainer = Trainer<LanguageModel>;

/// One window of tokens, `[batch, seq_len]` row-major.
#[derive(Debug, Clone, Copy)]
pub struct TokenBatch<'a> {
    /// Token ids, below the vocabulary size.
    pub inputs: &'a [u32],
    /// `targets[b, t]` is what position t must predict; [`IGNORE_INDEX`](mamba_model::IGNORE_INDEX) does not count.
    pub targets: &'a [i32],
    /// Weight of each target, finite and at least 0; absent: all 1.
    pub weights: Option<&'a [f32]>,
    /// 1 at the first token of a packed document; absent: all 0.
    pub reset: Option<&'a [u8]>,
}

impl<'a> TokenBatch<'a> {
    /// Inputs and targets, nothing weighted, nothing packed.
    pub fn new(inputs: &'a [u32], targets: &'a [i32]) -> Self {
        Self { inputs, targets, weights: None, reset: None }
    }

    fn input(&self) -> Input<'a> {
        Input { input: ModelInput::Tokens(self.inputs), reset: self.reset }
    }

    fn goal(&self) -> Goal<'a> {
        Goal::Loss { targets: self.targets, weights: self.weights }
    }
}

impl LmTrainer {
    /// All options, for windows of `[batch, seq_len]` tokens.
    pub fn builder(weights: MambaWeights, batch: usize, seq_len: usize) -> TrainerBuilder<LanguageModel> {
        let width = weights.config().backbone.input_width();
        TrainerBuilder::new(weights, TrainSessionCfg::new(width, batch, seq_len))
    }

    /// One whole step: zeroes the arena, forward, loss, backward, optimizer.
    ///
    /// The recurrent state goes on from window to window, as successive pieces of long texts need it. For windows that do
    /// not follow each other call [`reset_state`](Self::reset_state) first, or mark their first tokens in `reset`.
    ///
    /// # Errors
    /// [`TrainerError::WindowOpen`], [`TrainerError::Length`], [`TrainerError::Value`], [`TrainerError::Model`] for
    /// ids out of range, [`TrainerError::NoCountedTokens`].
    pub fn step(&mut self, batch: &TokenBatch<'_>) -> Result<LmStepMetrics> {
        self.core.step(Some(batch.input()), batch.goal())?;
        self.core.newest_lm_metrics()
    }

    /// Adds one micro-batch to the window, opening it where none is open; moves nothing but the recurrence. A
    /// micro-batch without counted tokens adds no gradient.
    ///
    /// # Errors
    /// [`TrainerError::Length`], [`TrainerError::Value`], [`TrainerError::Model`].
    pub fn accumulate(&mut self, batch: &TokenBatch<'_>) -> Result<MicroBatchMetrics> {
        let opts = BackwardOpts::new().with_accumulate_only(true);
        let tokens = self.core.check_goal(batch.goal())?.tokens;
        let (_, window) =
            self.core.micro_batch("accumulate", Some(batch.input()), batch.goal(), &opts, None)?;
        Ok(MicroBatchMetrics {
            micro_batches: self.window().unwrap_or(0),
            tokens,
            window_weight: window.weight,
        })
    }

    /// Adds one micro-batch and, unless `accumulate_only`, closes the window and waits for its outcome.
    ///
    /// # Errors
    /// As [`accumulate`](Self::accumulate), and [`TrainerError::Setting`], [`TrainerError::OptionWhileAccumulating`],
    /// [`TrainerError::NoCountedTokens`].
    pub fn backward_step(&mut self, batch: &TokenBatch<'_>, opts: BackwardOpts) -> Result<BackwardMetrics> {
        Ok(self.core.micro_batch("backward_step", Some(batch.input()), batch.goal(), &opts, None)?.0)
    }

    /// [`backward_step`](Self::backward_step) over the ranks of a group. The gradient is that of the mean over the
    /// counted tokens of all ranks.
    ///
    /// # Errors
    /// As [`backward_step`](Self::backward_step). An error of the group leaves the local gradient in the open window.
    pub fn backward_step_dist(
        &mut self,
        batch: &TokenBatch<'_>,
        opts: BackwardOpts,
        group: &DistContext,
    ) -> Result<BackwardMetrics> {
        let (input, goal) = (Some(batch.input()), batch.goal());
        Ok(self.core.micro_batch("backward_step_dist", input, goal, &opts, Some(group))?.0)
    }

    /// Metrics of the last closed window, waited for; `None` before the first one and after loading a state.
    ///
    /// # Errors
    /// Those of the device.
    pub fn last_metrics(&mut self) -> Result<Option<LmStepMetrics>> {
        self.core.last_lm_metrics()
    }

    /// Loss sums of one window, from the empty recurrent state. Training state, arena, open window and recurrence
    /// stay as they are.
    ///
    /// # Errors
    /// [`TrainerError::Length`], [`TrainerError::Value`], [`TrainerError::Model`].
    pub fn evaluate(&mut self, batch: &TokenBatch<'_>) -> Result<LossSums> {
        self.core.check_input(Some(batch.input()))?;
        self.core.check_goal(batch.goal())?;
        let input = ModelInput::Tokens(batch.inputs);
        self.core.engine.evaluate(input, batch.reset, batch.targets, batch.weights)
    }

    /// The f32 weights as they are now; the same as `snapshot_master`.
    ///
    /// # Errors
    /// Those of the device.
    pub fn weights(&mut self) -> Result<MambaWeights> {
        self.core.snapshot_master()
    }

    /// Closes the open window with the clip and skip of the fused step; waits for nothing.
    ///
    /// # Errors
    /// As [`apply_step`](Self::apply_step).
    pub fn apply_window(&mut self) -> Result<LmStepMetrics> {
        let opts = self.core.step_opts;
        self.core.close("apply_window", &opts, None)?;
        self.core.newest_lm_metrics()
    }
}

pub(crate) fn lm_metrics(step: &StepMetrics, outcome: Option<WindowOutcome>) -> LmStepMetrics {
    let loss = outcome.and_then(|o| o.loss).unwrap_or_default();
    LmStepMetrics {
        step: step.step,
        loss: loss.mean(),
        tokens: loss.tokens,
        grad_norm: outcome.and_then(|o| o.grad_norm),
        verdict: outcome.map(|o| o.verdict),
        graph_replayed: step.graph_replayed,
        loss_scale: step.loss_scale,
        overflow_skipped: step.overflow_skipped,
        lag: step.lag,
    }
}
