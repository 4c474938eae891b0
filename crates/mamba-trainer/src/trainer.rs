//! The trainer: what backbones and language models share, and the backbone's own calls.

use crate::builder::TrainerBuilder;
use crate::contract::{Core, Goal, Input, TrainerContext};
use crate::dist::DistContext;
use crate::engine::{Arena, Wait};
use crate::error::{Result, TrainerError, check_len};
use crate::metrics::{
    BackwardMetrics, BackwardOpts, NonFiniteGradient, StepMetrics, StepOpts, WindowOutcome,
};
use crate::session::{Device, GemmMode, TrainSessionCfg, WeightDtype};
use crate::step::Objective;
use mamba_model::{MambaWeights, ModelConfig, ModelInput, RecurrentState};
use mamba_optim::{AdamWState, ScalerState, SkipCounter};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// What a trainer trains; [`Backbone`] or [`LanguageModel`](crate::LanguageModel).
pub trait ModelKind: sealed::Kind {}

pub(crate) mod sealed {
    use crate::step::Objective;
    use mamba_model::ModelConfig;

    /// What differs between the kinds.
    pub trait Kind: 'static {
        #[doc(hidden)]
        const OBJECTIVE: Objective;
        #[doc(hidden)]
        fn check(model: &ModelConfig) -> crate::Result<()>;
    }
}

/// A bare backbone, trained from the gradient of its temporal output.
#[derive(Debug, Clone, Copy)]
pub enum Backbone {}

impl ModelKind for Backbone {}

impl sealed::Kind for Backbone {
    const OBJECTIVE: Objective = Objective::Upstream;

    fn check(model: &ModelConfig) -> Result<()> {
        match model.lm {
            None => Ok(()),
            Some(_) => Err(TrainerError::WrongModel {
                trainer: "MambaTrainer",
                needs: "a bare backbone",
                has: "a language model; use LmTrainer",
            }),
        }
    }
}

/// One model in training. Use it as [`MambaTrainer`] or [`LmTrainer`](crate::LmTrainer).
///
/// Every call that returns an error leaves the trainer as it was before the call, unless it says otherwise.
pub struct Trainer<K: ModelKind> {
    pub(crate) core: Core,
    pub(crate) kind: PhantomData<fn() -> K>,
}

impl<K: ModelKind> fmt::Debug for Trainer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core { ctx, adamw, step_opts, window, .. } = &self.core;
        f.debug_struct("Trainer")
            .field("ctx", ctx)
            .field("adamw", adamw)
            .field("step_opts", step_opts)
            .field("window", window)
            .finish_non_exhaustive()
    }
}

/// Trains a backbone from the gradient of its temporal output; for language models see
/// [`LmTrainer`](crate::LmTrainer).
///
/// `step` runs a whole window at once; `forward` and `backward_step` are its two halves, with the same bits.
pub type MambaTrainer = Trainer<Backbone>;

/// Everything that does not depend on the kind of model.
impl<K: ModelKind> Trainer<K> {
    pub(crate) fn from_core(core: Core) -> Self {
        Self { core, kind: PhantomData }
    }

    /// Closes the open window, with a global-norm clip or without, and waits for the outcome. Cancels a pending forward: it
    /// was made with the weights before.
    ///
    /// # Errors
    /// [`TrainerError::NoWindow`], [`TrainerError::Setting`]; [`TrainerError::NoCountedTokens`] leaves the window
    /// open.
    pub fn apply_step(&mut self, clip_max_norm: Option<f64>) -> Result<BackwardMetrics> {
        self.apply_step_with(clip_max_norm, None)
    }

    /// Closes the open window, with a global-norm clip, a spike skip, both or neither.
    ///
    /// # Errors
    /// As [`apply_step`](Self::apply_step).
    pub fn apply_step_with(
        &mut self,
        clip_max_norm: Option<f64>,
        step_skip_above: Option<f64>,
    ) -> Result<BackwardMetrics> {
        let opts = StepOpts { clip_max_norm, step_skip_above, ..StepOpts::default() };
        self.core.apply("apply_step", &opts, None)
    }

    /// Closes the open window with all options.
    ///
    /// # Errors
    /// As [`apply_step`](Self::apply_step).
    pub fn apply_step_opts(&mut self, opts: &StepOpts) -> Result<BackwardMetrics> {
        self.core.apply("apply_step", opts, None)
    }

    /// Closes the open window over all ranks of a group.
    ///
    /// # Errors
    /// As [`apply_step`](Self::apply_step), and those of the group, which leave the window open.
    pub fn apply_step_dist(&mut self, opts: &StepOpts, group: &DistContext) -> Result<BackwardMetrics> {
        self.core.apply("apply_step_dist", opts, Some(group))
    }

    /// Drops the open window; the way out of one that holds NaN.
    ///
    /// # Errors
    /// [`TrainerError::NoWindow`].
    pub fn discard_window(&mut self) -> Result<()> {
        self.core.discard_window()
    }

    /// Micro-batches of the open accumulation window, `None` where none is open.
    pub fn window(&self) -> Option<u64> {
        self.core.window.map(|w| w.micro_batches)
    }

    /// Whether a forward waits for its backward.
    pub fn has_pending_forward(&self) -> bool {
        self.core.has_pending_forward()
    }

    /// Sets clip and skip of the fused step, under a captured graph too.
    ///
    /// # Errors
    /// [`TrainerError::Setting`].
    pub fn set_step_opts(&mut self, opts: StepOpts) -> Result<()> {
        self.core.set_step_opts(opts)
    }

    /// Clip and skip of the fused step.
    pub fn step_opts(&self) -> StepOpts {
        self.core.step_opts
    }

    /// Gradient norm of the last closed window, see [`WindowOutcome::grad_norm`]; waits for it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn last_grad_norm(&mut self) -> Result<Option<f64>> {
        Ok(self.core.last_outcome()?.and_then(|o| o.grad_norm))
    }

    /// Outcome of the last closed window; waits for it. `None` before the first one and after loading a state.
    ///
    /// # Errors
    /// Those of the device.
    pub fn last_outcome(&mut self) -> Result<Option<WindowOutcome>> {
        self.core.last_outcome()
    }

    /// Windows skipped so far, by reason and in a row; waits for the last outcome.
    ///
    /// # Errors
    /// Those of the device.
    pub fn skips(&mut self) -> Result<SkipCounter> {
        Ok(self.core.engine.progress(Wait::Yes)?.skips)
    }

    /// Records the fused step; from then on `step` replays it, with the same bits. Executes nothing and changes no
    /// state, but a pending forward becomes stale.
    ///
    /// # Errors
    /// [`TrainerError::GraphNeedsEagerStep`], [`TrainerError::WindowOpen`].
    pub fn capture_graph(&mut self) -> Result<()> {
        self.core.capture_graph(K::OBJECTIVE)
    }

    /// Drops the recorded step; a pending forward becomes stale. Without one, does nothing.
    pub fn drop_graph(&mut self) {
        self.core.drop_graph();
    }

    /// Whether a step is recorded.
    pub fn has_graph(&self) -> bool {
        self.core.engine.has_graph()
    }

    /// Learning rate of the next step, under a captured graph too.
    ///
    /// # Errors
    /// [`TrainerError::Optim`] unless it is finite and above 0.
    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        self.core.set_lr(lr)
    }

    /// Learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.core.adamw.lr()
    }

    /// `true` (the default): A_log, D, the Δ bias and norm scales do not decay. `false`: all tensors decay.
    ///
    /// # Errors
    /// [`TrainerError::UnderGraph`].
    pub fn set_reference_no_decay(&mut self, on: bool) -> Result<()> {
        self.core.set_reference_no_decay(on)
    }

    /// Whether the reference's no-decay groups are on.
    pub fn reference_no_decay(&self) -> bool {
        self.core.reference_no_decay
    }

    /// Empties the recurrence (convolution windows and h) and cancels a pending forward.
    ///
    /// # Errors
    /// Those of the device.
    pub fn reset_state(&mut self) -> Result<()> {
        self.core.reset_state()
    }

    /// The flat f32 gradient arena, laid out by `ctx().table`: sums over the open window, or what the last one
    /// left, in f16 times the loss scale, for a language model not yet divided by the counted tokens.
    ///
    /// # Errors
    /// Those of the device.
    pub fn grad_arena(&mut self) -> Result<Cow<'_, [f32]>> {
        self.core.engine.read(Arena::Grads)
    }

    /// Where the first NaN or infinity of the gradient arena lies, in arena order; the answer to a
    /// [`Verdict::NonFiniteSkipped`](crate::Verdict::NonFiniteSkipped). Waits for the device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn first_non_finite_gradient(&mut self) -> Result<Option<NonFiniteGradient>> {
        self.core.first_non_finite_gradient()
    }

    /// Overwrites the gradient arena of the open window, for instance with a sum over machines. Alignment gaps are
    /// left at zero. NaN and Inf are taken: the closing call will meet them.
    ///
    /// # Errors
    /// [`TrainerError::NoWindow`], [`TrainerError::Length`].
    pub fn upload_grad_arena(&mut self, grads: &[f32]) -> Result<()> {
        self.core.window.ok_or(TrainerError::NoWindow { call: "upload_grad_arena" })?;
        check_len("grads", grads.len(), self.core.ctx.table.arena_len(), "flat arena, see ParamTable")?;
        let clean = self.core.without_gaps(grads);
        self.core.engine.write(Arena::Grads, &clean)
    }

    /// The f32 weights as they are now; waits for the device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn snapshot_master(&mut self) -> Result<MambaWeights> {
        self.core.snapshot_master()
    }

    /// Moments and step count.
    ///
    /// # Errors
    /// Those of the device.
    pub fn optimizer_state(&mut self) -> Result<AdamWState> {
        self.core.optimizer_state()
    }

    /// Replaces moments and step count. `last_outcome` is forgotten.
    ///
    /// # Errors
    /// [`TrainerError::UnderGraph`], [`TrainerError::WindowOpen`], [`TrainerError::Optim`] for a state that does not
    /// fit.
    pub fn load_optimizer_state(&mut self, state: &AdamWState) -> Result<()> {
        self.core.load_optimizer_state(state)
    }

    /// The state carried to the next window.
    ///
    /// # Errors
    /// Those of the device.
    pub fn recurrent_state(&mut self) -> Result<RecurrentState> {
        self.core.engine.recurrence()
    }

    /// Replaces the carried state and cancels a pending forward.
    ///
    /// # Errors
    /// [`TrainerError::Model`] for lengths or values that do not fit.
    pub fn load_recurrent_state(&mut self, state: &RecurrentState) -> Result<()> {
        self.core.load_recurrent_state(state)
    }

    /// State of the loss scaler; `None` where the precision has none.
    ///
    /// # Errors
    /// Those of the device.
    pub fn scaler_state(&mut self) -> Result<Option<ScalerState>> {
        self.core.engine.scaler()
    }

    /// Replaces the state of the loss scaler; the growth counter goes on where it was.
    ///
    /// # Errors
    /// [`TrainerError::UnderGraph`], [`TrainerError::WindowOpen`], [`TrainerError::Optim`] where the precision has no
    /// scaler or the state is out of its bounds.
    pub fn load_scaler_state(&mut self, state: Option<ScalerState>) -> Result<()> {
        self.core.load_scaler_state(state)
    }

    /// Norms of the last applied windows, oldest first, at most 128: what [`StepOpts::skip_z_score`] looks at. Kept
    /// whether it is on or off.
    ///
    /// # Errors
    /// Those of the device.
    pub fn norm_history(&mut self) -> Result<Vec<f64>> {
        self.core.engine.norms()
    }

    /// Replaces the norms of the last applied windows; oldest first.
    ///
    /// # Errors
    /// [`TrainerError::UnderGraph`], [`TrainerError::WindowOpen`], [`TrainerError::Optim`] for more than 128 norms, or
    /// one that is negative or not finite.
    pub fn load_norm_history(&mut self, norms: &[f64]) -> Result<()> {
        self.core.load_norm_history(norms)
    }

    /// Gradient of the input `[B, T, input_dim]` of the last backward pass. Waits for the device.
    ///
    /// # Errors
    /// [`TrainerError::NoInputGradient`] where it was not asked for at build time or no backward has run.
    pub fn input_gradient(&mut self) -> Result<Cow<'_, [f32]>> {
        self.core.require_input_gradient()?;
        self.core.engine.input_gradient()
    }

    /// Sequences per window.
    pub fn batch(&self) -> usize {
        self.core.ctx.session.batch
    }

    /// Tokens per sequence and window.
    pub fn seq_len(&self) -> usize {
        self.core.ctx.session.seq_len
    }

    /// Storage of the bulk weights.
    pub fn dtype(&self) -> WeightDtype {
        self.core.ctx.dtype
    }

    /// What the trainer was built with.
    pub fn ctx(&self) -> &TrainerContext {
        &self.core.ctx
    }
}

impl MambaTrainer {
    /// A trainer on the best device of this machine.
    ///
    /// # Errors
    /// As [`TrainerBuilder::build`].
    pub fn new_with_dtype(
        weights: MambaWeights,
        session: TrainSessionCfg,
        dtype: WeightDtype,
    ) -> Result<Self> {
        Self::builder(weights, session).dtype(dtype).build()
    }

    /// A trainer on a device.
    ///
    /// # Errors
    /// As [`TrainerBuilder::build`].
    pub fn new_full(
        weights: MambaWeights,
        session: TrainSessionCfg,
        dtype: WeightDtype,
        device: Device,
    ) -> Result<Self> {
        Self::builder(weights, session).dtype(dtype).device(device).build()
    }

    /// A trainer on a device, with a choice of matrix products.
    ///
    /// # Errors
    /// As [`TrainerBuilder::build`].
    pub fn new_full_with_mode(
        weights: MambaWeights,
        session: TrainSessionCfg,
        dtype: WeightDtype,
        device: Device,
        mode: GemmMode,
    ) -> Result<Self> {
        Self::builder(weights, session).dtype(dtype).device(device).gemm_mode(mode).build()
    }

    /// All options.
    pub fn builder(weights: MambaWeights, session: TrainSessionCfg) -> TrainerBuilder<Backbone> {
        TrainerBuilder::new(weights, session)
    }

    /// One whole step: zeroes the arena, forward, backward, optimizer. `input` is `[B, T, input_dim]`, `d_temporal` is
    /// `[B, T, d_model]`; both may be reused when the call returns. Cancels a pending forward.
    ///
    /// # Errors
    /// [`TrainerError::WindowOpen`], [`TrainerError::Length`], [`TrainerError::Model`].
    pub fn step(&mut self, input: &[f32], d_temporal: &[f32]) -> Result<StepMetrics> {
        self.step_packed(input, None, d_temporal)
    }

    /// [`step`](Self::step) over packed documents: where `reset` `[B, T]` is 1 a document starts, state and
    /// convolution window are empty and no gradient crosses.
    ///
    /// # Errors
    /// As [`step`](Self::step), and [`TrainerError::Value`] for a mask value other than 0 and 1.
    pub fn step_packed(
        &mut self,
        input: &[f32],
        reset: Option<&[u8]>,
        d_temporal: &[f32],
    ) -> Result<StepMetrics> {
        let input = Input { input: ModelInput::Dense(input), reset };
        self.core.step(Some(input), Goal::Upstream(d_temporal))
    }

    /// The forward half: writes the temporal output `[B, T, d_model]` and advances the recurrence.
    ///
    /// # Errors
    /// [`TrainerError::Length`], [`TrainerError::Model`]. A failed forward cancels a pending one and changes
    /// nothing else.
    pub fn forward(&mut self, input: &[f32], temporal: &mut [f32]) -> Result<()> {
        self.forward_packed(input, None, temporal)
    }

    /// [`forward`](Self::forward) over packed documents, see [`step_packed`](Self::step_packed).
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and [`TrainerError::Value`].
    pub fn forward_packed(
        &mut self,
        input: &[f32],
        reset: Option<&[u8]>,
        temporal: &mut [f32],
    ) -> Result<()> {
        self.core.forward(Some(Input { input: ModelInput::Dense(input), reset }), Some(temporal))
    }

    /// The backward half: adds the gradient of the pending forward to the window and, unless
    /// [`accumulate_only`](BackwardOpts::accumulate_only), closes it and waits for the outcome.
    ///
    /// # Errors
    /// [`TrainerError::NoPendingForward`], [`TrainerError::StaleForward`], [`TrainerError::Length`],
    /// [`TrainerError::Setting`], [`TrainerError::OptionWhileAccumulating`].
    pub fn backward_step(&mut self, d_temporal: &[f32], opts: BackwardOpts) -> Result<BackwardMetrics> {
        let goal = Goal::Upstream(d_temporal);
        Ok(self.core.micro_batch("backward_step", None, goal, &opts, None)?.0)
    }

    /// [`backward_step`](Self::backward_step) over the ranks of a group: the local backward runs with the window left
    /// open, the arenas are summed over the ranks and scaled by 1/world, then the tail runs. Accumulating calls
    /// stay local.
    ///
    /// # Errors
    /// As [`backward_step`](Self::backward_step). An error of the group leaves the local gradient in the open window:
    /// close it with `apply_step_dist` on a new group, or drop it with `discard_window`.
    pub fn backward_step_dist(
        &mut self,
        d_temporal: &[f32],
        opts: BackwardOpts,
        group: &DistContext,
    ) -> Result<BackwardMetrics> {
        let goal = Goal::Upstream(d_temporal);
        Ok(self.core.micro_batch("backward_step_dist", None, goal, &opts, Some(group))?.0)
    }
}
