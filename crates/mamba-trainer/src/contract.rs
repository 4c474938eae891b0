//! The state machine of a trainer: pending forwards, accumulation windows, options, errors. It is written once,
//! over an [`Engine`], for every device, precision and kind of model.

use crate::dist::DistContext;
use crate::engine::{Engine, Progress, Staged, StepValues, Wait};
use crate::error::{Result, TrainerError, check_len};
use crate::lm::lm_metrics;
use crate::metrics::{
    BackwardMetrics, BackwardOpts, LmStepMetrics, StepMetrics, StepOpts, Verdict, WindowOutcome,
};
use crate::session::{Device, GemmMode, TrainSessionCfg, WeightDtype};
use crate::step::{Objective, Plan, enqueue};
use mamba_model::{IGNORE_INDEX, ModelConfig, ModelError, ModelInput, ParamTable};
use mamba_optim::{AdamWConfig, OptimError};
use std::sync::Arc;

/// What a trainer was built with.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrainerContext {
    /// The model.
    pub model: ModelConfig,
    /// Names and places of the tensors in every arena.
    pub table: Arc<ParamTable>,
    /// Sizes and the first step's rates.
    pub session: TrainSessionCfg,
    /// Where it runs.
    pub device: Device,
    /// Storage of the bulk weights.
    pub dtype: WeightDtype,
    /// Which matrix products run.
    pub gemm_mode: GemmMode,
    /// Whether backward passes keep the gradient of the input.
    pub input_gradient: bool,
    /// Whether activations are recomputed in the backward pass.
    pub recompute: bool,
}

/// One window of input with its packing mask.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub input: ModelInput<'a>,
    pub reset: Option<&'a [u8]>,
}

/// Where the gradient of a micro-batch comes from.
#[derive(Clone, Copy)]
pub(crate) enum Goal<'a> {
    /// `[B, T, d_model]`.
    Upstream(&'a [f32]),
    /// The upstream gradient that lies on the device.
    Resident,
    /// Targets `[B, T]` and token weights.
    Loss { targets: &'a [i32], weights: Option<&'a [f32]> },
}

impl<'a> Goal<'a> {
    fn objective(&self) -> Objective {
        match self {
            Self::Upstream(_) | Self::Resident => Objective::Upstream,
            Self::Loss { .. } => Objective::Loss,
        }
    }

    fn staged(&self) -> Option<Staged<'a>> {
        match *self {
            Self::Upstream(d) => Some(Staged::Upstream(d)),
            Self::Resident => None,
            Self::Loss { targets, weights } => Some(Staged::Targets { targets, weights }),
        }
    }
}

/// Counted targets of a micro-batch and the sum of their weights; (0, 0) for an upstream gradient.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Counted {
    pub tokens: u64,
    pub weight: f64,
}

/// An open accumulation window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Window {
    pub micro_batches: u64,
    pub objective: Objective,
    pub counted: Counted,
}

pub(crate) struct Core {
    pub engine: Box<dyn Engine>,
    pub ctx: TrainerContext,
    pub adamw: AdamWConfig,
    pub step_opts: StepOpts,
    pub reference_no_decay: bool,
    /// Largest number of windows skipped in a row.
    pub skip_limit: Option<u32>,
    pub window: Option<Window>,
    /// Epoch in which the pending forward was taken.
    pending: Option<u64>,
    /// Counts captures and drops.
    pub(crate) epoch: u64,
    /// Whether an eager fused step has run.
    pub(crate) warm: bool,
    /// Windows closed so far.
    closed: u64,
    /// Whether the last closed window was a replay.
    last_replayed: bool,
    /// Whether a backward pass has left a gradient of the input.
    has_input_gradient: bool,
}

impl Core {
    pub fn new(
        engine: Box<dyn Engine>,
        ctx: TrainerContext,
        adamw: AdamWConfig,
        reference_no_decay: bool,
    ) -> Self {
        Self {
            engine,
            ctx,
            adamw,
            step_opts: StepOpts::default(),
            reference_no_decay,
            skip_limit: None,
            window: None,
            pending: None,
            epoch: 0,
            warm: false,
            closed: 0,
            last_replayed: false,
            has_input_gradient: false,
        }
    }

    /// The fused step: the whole window in one call, eager or as a replay. Without an input: of what lies on the device.
    pub fn step(&mut self, input: Option<Input<'_>>, goal: Goal<'_>) -> Result<StepMetrics> {
        self.refuse_window("step")?;
        self.check_input(input)?;
        let counted = self.check_goal(goal)?;
        let grad_factor = grad_factor(goal.objective(), counted.weight)?;
        self.pending = None;
        self.stage(input, goal)?;
        self.engine.set_values(&StepValues { adamw: self.adamw, grad_factor, opts: self.step_opts })?;
        let graph_replayed = self.engine.has_graph();
        match graph_replayed {
            true => self.engine.replay()?,
            false => enqueue(&mut *self.engine, &Plan::fused(goal.objective()))?,
        }
        self.warm |= !graph_replayed;
        self.last_replayed = graph_replayed;
        self.closed += 1;
        self.has_input_gradient = true;
        let progress = self.engine.progress(Wait::No)?;
        self.check_skips(&progress)?;
        Ok(self.step_metrics(&progress, graph_replayed))
    }

    /// Copies the host data of a window to where the engine reads it.
    fn stage(&mut self, input: Option<Input<'_>>, goal: Goal<'_>) -> Result<()> {
        if let Some(Input { input, reset }) = input {
            self.engine.stage(Staged::Input { input, reset })?;
        }
        goal.staged().map_or(Ok(()), |data| self.engine.stage(data))
    }

    /// The forward half of a split step; without an input: of what lies on the device, without an output: left there. On
    /// an error a pending forward is cancelled.
    pub fn forward(&mut self, input: Option<Input<'_>>, temporal: Option<&mut [f32]>) -> Result<()> {
        self.pending = None;
        self.check_input(input)?;
        let wanted = temporal.as_ref().map_or(self.temporal_len(), |t| t.len());
        check_len("temporal", wanted, self.temporal_len(), "[batch, seq_len, d_model]")?;
        if let Some(Input { input, reset }) = input {
            self.engine.stage(Staged::Input { input, reset })?;
        }
        enqueue(&mut *self.engine, &Plan::forward())?;
        if let Some(temporal) = temporal {
            self.engine.read_temporal(temporal)?;
        }
        self.pending = Some(self.epoch);
        Ok(())
    }

    /// One micro-batch: backward through the pending forward, or through a forward of `input` run here; then the
    /// tail unless `accumulate_only`.
    pub fn micro_batch(
        &mut self,
        call: &'static str,
        input: Option<Input<'_>>,
        goal: Goal<'_>,
        opts: &BackwardOpts,
        group: Option<&DistContext>,
    ) -> Result<(BackwardMetrics, Counted)> {
        opts.validate()?;
        match input {
            Some(_) => self.check_input(input)?,
            None => self.check_pending(call)?,
        }
        let counted = self.check_goal(goal)?;
        let objective = goal.objective();
        let group = group.filter(|g| g.world() > 1);
        let window = self.extended(objective, counted);
        let closes = !opts.accumulate_only && group.is_none();
        let grad_factor = match closes {
            true => grad_factor(objective, window.counted.weight)?,
            false => 1.0,
        };
        self.stage(input, goal)?;
        if closes {
            let values = StepValues { adamw: self.adamw, grad_factor, opts: opts.step_opts() };
            self.engine.set_values(&values)?;
        }
        let opens = self.window.is_none();
        self.pending = None;
        enqueue(
            &mut *self.engine,
            &Plan { opens, forward: input.is_some(), backward: Some(objective), closes },
        )?;
        self.has_input_gradient = true;
        if closes {
            self.window_closed();
            return Ok((self.closed_metrics()?, window.counted));
        }
        self.window = Some(window);
        match opts.accumulate_only {
            true => Ok((self.accumulating_metrics()?, window.counted)),
            false => Ok((self.apply(call, &opts.step_opts(), group)?, window.counted)),
        }
    }

    /// Closes the open window and waits for its outcome.
    pub fn apply(
        &mut self,
        call: &'static str,
        opts: &StepOpts,
        group: Option<&DistContext>,
    ) -> Result<BackwardMetrics> {
        self.close(call, opts, group)?;
        self.closed_metrics()
    }

    /// Closes the open window; cancels a pending forward.
    pub fn close(&mut self, call: &'static str, opts: &StepOpts, group: Option<&DistContext>) -> Result<()> {
        opts.validate()?;
        let window = self.window.ok_or(TrainerError::NoWindow { call })?;
        let group = group.filter(|g| g.world() > 1);
        let mut sums = [window.counted.weight];
        if let Some(group) = group {
            self.agree(group, opts)?;
            self.engine.all_reduce(group, &mut sums)?;
        }
        let mut grad_factor = grad_factor(window.objective, sums[0])?;
        if let (Some(group), Objective::Upstream) = (group, window.objective) {
            grad_factor /= group.world() as f64;
        }
        self.engine.set_values(&StepValues { adamw: self.adamw, grad_factor, opts: *opts })?;
        enqueue(&mut *self.engine, &Plan::close())?;
        self.window_closed();
        Ok(())
    }

    fn window_closed(&mut self) {
        self.window = None;
        // Its activations belong to the weights before.
        self.pending = None;
        self.closed += 1;
        self.last_replayed = false;
    }

    /// Checks that every rank is about to take the same step.
    fn agree(&self, group: &DistContext, opts: &StepOpts) -> Result<()> {
        let mut fields = vec![("lr", self.adamw.lr()), ("parameters", self.ctx.table.arena_len() as f64)];
        fields.extend(opts.named().map(|(name, value)| (name, value.unwrap_or(f64::INFINITY))));
        group.agree(&fields)
    }

    /// Drops the open window.
    pub fn discard_window(&mut self) -> Result<()> {
        self.window.take().map(|_| ()).ok_or(TrainerError::NoWindow { call: "discard_window" })
    }

    /// Empties the recurrence; cancels a pending forward.
    pub fn reset_state(&mut self) -> Result<()> {
        self.engine.set_recurrence(None)?;
        self.pending = None;
        Ok(())
    }

    /// Makes a pending forward unusable.
    pub fn cancel_pending(&mut self) {
        self.pending = None;
    }

    pub fn has_pending_forward(&self) -> bool {
        self.pending.is_some()
    }

    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        self.adamw = self.adamw.with_lr(lr)?;
        Ok(())
    }

    pub fn set_step_opts(&mut self, opts: StepOpts) -> Result<()> {
        opts.validate()?;
        self.step_opts = opts;
        Ok(())
    }

    pub fn set_reference_no_decay(&mut self, on: bool) -> Result<()> {
        self.refuse_graph("set_reference_no_decay")?;
        self.engine.set_reference_no_decay(on)?;
        self.reference_no_decay = on;
        Ok(())
    }

    /// An error once too many windows in a row were spikes or not finite.
    fn check_skips(&self, progress: &Progress) -> Result<()> {
        let consecutive = progress.skips.consecutive;
        match self.skip_limit {
            Some(limit) if consecutive > limit => Err(OptimError::TooManySkips { consecutive, limit }.into()),
            _ => Ok(()),
        }
    }

    /// The outcome of the last closed window, waited for.
    pub fn last_outcome(&mut self) -> Result<Option<WindowOutcome>> {
        Ok(self.engine.progress(Wait::Yes)?.last)
    }

    /// A language model's metrics of the last closed window, waited for.
    pub fn last_lm_metrics(&mut self) -> Result<Option<LmStepMetrics>> {
        let progress = self.engine.progress(Wait::Yes)?;
        Ok(progress.last.map(|_| self.lm_metrics_of(&progress)))
    }

    /// A language model's metrics of the newest window that is known without waiting.
    pub fn newest_lm_metrics(&mut self) -> Result<LmStepMetrics> {
        let progress = self.engine.progress(Wait::No)?;
        self.check_skips(&progress)?;
        Ok(self.lm_metrics_of(&progress))
    }

    fn lm_metrics_of(&self, progress: &Progress) -> LmStepMetrics {
        lm_metrics(&self.step_metrics(progress, self.last_replayed), progress.last)
    }

    pub fn refuse_graph(&self, call: &'static str) -> Result<()> {
        match self.engine.has_graph() {
            true => Err(TrainerError::UnderGraph { call }),
            false => Ok(()),
        }
    }

    pub fn refuse_window(&self, call: &'static str) -> Result<()> {
        match self.window {
            Some(Window { micro_batches, .. }) => Err(TrainerError::WindowOpen { call, micro_batches }),
            None => Ok(()),
        }
    }

    pub fn require_input_gradient(&self) -> Result<()> {
        let why = match (self.ctx.input_gradient, self.has_input_gradient) {
            (true, true) => return Ok(()),
            (false, _) => "it was not asked for; build the trainer with `input_gradient(true)`",
            (true, false) => "no backward has run yet",
        };
        Err(TrainerError::NoInputGradient { why })
    }

    /// Elements of the temporal output.
    pub fn temporal_len(&self) -> usize {
        self.tokens() * self.ctx.model.backbone.d_model
    }

    fn tokens(&self) -> usize {
        self.ctx.session.batch * self.ctx.session.seq_len
    }

    pub fn check_input(&self, input: Option<Input<'_>>) -> Result<()> {
        let Some(input) = input else { return Ok(()) };
        let session = &self.ctx.session;
        input.input.check(&self.ctx.model, session.batch, session.seq_len)?;
        let Some(reset) = input.reset else { return Ok(()) };
        check_len("reset", reset.len(), self.tokens(), "[batch, seq_len]")?;
        match reset.iter().position(|&r| r > 1) {
            Some(index) => Err(TrainerError::Value {
                name: "reset",
                index,
                value: f64::from(reset[index]),
                expected: "0, or 1 at the first token of a document",
            }),
            None => Ok(()),
        }
    }

    pub fn check_goal(&self, goal: Goal<'_>) -> Result<Counted> {
        match goal {
            Goal::Upstream(d) => {
                check_len("d_temporal", d.len(), self.temporal_len(), "[batch, seq_len, d_model]")?;
                Ok(Counted::default())
            }
            Goal::Resident => Ok(Counted::default()),
            Goal::Loss { targets, weights } => self.check_targets(targets, weights),
        }
    }

    fn check_targets(&self, targets: &[i32], weights: Option<&[f32]>) -> Result<Counted> {
        let vocab_size = self.ctx.model.lm.as_ref().map_or(0, |lm| lm.vocab_size);
        check_len("targets", targets.len(), self.tokens(), "[batch, seq_len]")?;
        if let Some(weights) = weights {
            check_len("weights", weights.len(), self.tokens(), "[batch, seq_len]")?;
        }
        let mut counted = Counted::default();
        for (index, &target) in targets.iter().enumerate() {
            let weight = weights.map_or(1.0, |w| w[index]);
            if !(weight.is_finite() && weight >= 0.0) {
                let (value, expected) = (f64::from(weight), "finite and at least 0");
                return Err(TrainerError::Value { name: "weights", index, value, expected });
            }
            if target == IGNORE_INDEX {
                continue;
            }
            if usize::try_from(target).map_or(true, |t| t >= vocab_size) {
                return Err(ModelError::Token { token: i64::from(target), index, vocab_size }.into());
            }
            counted.tokens += 1;
            counted.weight += f64::from(weight);
        }
        Ok(counted)
    }

    fn check_pending(&self, call: &'static str) -> Result<()> {
        match self.pending {
            None => Err(TrainerError::NoPendingForward { call }),
            Some(epoch) if epoch != self.epoch => Err(TrainerError::StaleForward),
            Some(_) => Ok(()),
        }
    }

    /// The window with one more micro-batch in it.
    fn extended(&self, objective: Objective, counted: Counted) -> Window {
        let before = self.window.map_or(Counted::default(), |w| w.counted);
        Window {
            micro_batches: self.window.map_or(0, |w| w.micro_batches) + 1,
            objective,
            counted: Counted {
                tokens: before.tokens + counted.tokens,
                weight: before.weight + counted.weight,
            },
        }
    }

    fn step_metrics(&self, progress: &Progress, graph_replayed: bool) -> StepMetrics {
        let last = progress.last;
        StepMetrics {
            step: progress.step,
            graph_replayed,
            loss_scale: last.map_or(progress.loss_scale, |o| o.loss_scale),
            overflow_skipped: last.is_some_and(|o| o.verdict == Verdict::OverflowSkipped),
            lag: self.closed - last.map_or(0, |o| o.window),
        }
    }

    fn accumulating_metrics(&mut self) -> Result<BackwardMetrics> {
        let progress = self.engine.progress(Wait::No)?;
        Ok(BackwardMetrics {
            step: progress.step,
            optimizer_stepped: false,
            grad_norm: None,
            loss_scale: progress.loss_scale,
            overflow_skipped: false,
        })
    }

    fn closed_metrics(&mut self) -> Result<BackwardMetrics> {
        let progress = self.engine.progress(Wait::Yes)?;
        self.check_skips(&progress)?;
        let verdict = progress.last.map(|o| o.verdict);
        Ok(BackwardMetrics {
            step: progress.step,
            optimizer_stepped: verdict == Some(Verdict::Applied),
            grad_norm: progress.last.and_then(|o| o.grad_norm),
            loss_scale: progress.last.map_or(progress.loss_scale, |o| o.loss_scale),
            overflow_skipped: verdict == Some(Verdict::OverflowSkipped),
        })
    }
}

/// Factor of the whole gradient: the mean over the counted tokens of the window for a loss, 1 for a caller's
/// gradient.
fn grad_factor(objective: Objective, weight: f64) -> Result<f64> {
    match objective {
        Objective::Upstream => Ok(1.0),
        Objective::Loss if weight == 0.0 => Err(TrainerError::NoCountedTokens),
        Objective::Loss => {
            let factor = 1.0 / weight;
            match (factor as f32).is_normal() {
                true => Ok(factor),
                false => Err(TrainerError::Setting {
                    name: "window weight",
                    value: weight.to_string(),
                    expected: "between 3e-39 and 8e37, so that the mean has an f32 factor",
                }),
            }
        }
    }
}
