//! What a device must be able to do. The contract (pending forwards, windows, options, errors) lives above this
//! trait and knows no device.
//!
//! Rules for an implementation:
//! - Nothing here waits for the device unless its documentation says so.
//! - Host slices are copied before a call returns.
//! - Everything that changes from step to step reaches the device through [`Engine::stage`] and
//!   [`Engine::set_values`], never as an argument of an [`Op`]: a captured step must see it.
//! - Arguments have been checked: lengths, ranges, finiteness, order of calls. An error is the device's own.

mod cpu;
pub(crate) mod cuda;
mod groups;
mod readback;

use crate::builder::EngineConfig;
use crate::device_buffers::DeviceBuffers;
use crate::dist::DistContext;
use crate::error::{Result, TrainerError};
use crate::metrics::{StepOpts, WindowOutcome};
use crate::session::{Device, GemmMode, WeightDtype};
use mamba_model::{LossSums, ModelInput, RecurrentState};
use mamba_optim::{AdamWConfig, ScalerState, SkipCounter};
use std::borrow::Cow;

/// One part of a step. The order in which they run is written in `step.rs` and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Zeroes the gradient arena and the window's loss sums.
    ZeroGrads,
    /// Forward pass of the staged input; advances the recurrence, keeps what a backward needs.
    Forward,
    /// Backward pass from the staged upstream gradient; adds to the arena.
    Backward,
    /// Loss of the staged targets and its backward pass; adds to the arena and to the window's loss sums.
    LossBackward,
    /// The optimizer's tail, in the order of [`mamba_optim::tail`]: overflow → control clip → norm → clip and skip
    /// → AdamW, which reads the gradient times `grad_factor` over the loss scale → loss scale. Where the weights
    /// moved, all that derives from them (half shadow, A = -exp(A_log)) is refreshed by the same pass.
    Tail,
    /// Makes the outcome readable.
    Publish,
}

/// Host data that a step reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Staged<'a> {
    /// The window's input and its packing mask `[B, T]` (absent: all zeros).
    Input { input: ModelInput<'a>, reset: Option<&'a [u8]> },
    /// Gradient of the loss with respect to the temporal output, `[B, T, d_model]`.
    Upstream(&'a [f32]),
    /// Targets `[B, T]` and token weights (absent: all ones).
    Targets { targets: &'a [i32], weights: Option<&'a [f32]> },
}

/// Values that a closing step reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepValues {
    /// Rates, betas, epsilon.
    pub adamw: AdamWConfig,
    /// Factor of the whole gradient beside the loss scale: 1/Σ weight of a language model's window, 1/world size.
    pub grad_factor: f64,
    /// Thresholds.
    pub opts: StepOpts,
}

/// Flat arenas of `ParamTable::arena_len` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arena {
    /// f32 weights. Writing refreshes all that derives from them.
    Master,
    /// Gradients, scaled by the loss scale while a window is open.
    Grads,
    /// First moments.
    M,
    /// Second moments.
    V,
}

/// Whether a call may wait for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Report what is known.
    No,
    /// Wait until everything enqueued is done.
    Yes,
}

/// How far the device is known to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Progress {
    /// Optimizer steps applied.
    pub step: u64,
    /// Current loss scale; 1 where there is none.
    pub loss_scale: f32,
    /// The newest outcome that is known; at most one window late without waiting.
    pub last: Option<WindowOutcome>,
    /// Skipped windows up to that outcome. Its limit is not used.
    pub skips: SkipCounter,
}

/// A device that trains one model.
pub(crate) trait Engine: Send {
    /// Copies host data to where the next step reads it.
    fn stage(&mut self, data: Staged<'_>) -> Result<()>;
    /// Sets the values of the next closing step.
    fn set_values(&mut self, values: &StepValues) -> Result<()>;
    /// Runs one part of a step, or records it between `begin_capture` and `end_capture`.
    fn enqueue(&mut self, op: Op) -> Result<()>;
    /// What is known of the last steps.
    fn progress(&mut self, wait: Wait) -> Result<Progress>;

    /// From here on `enqueue` records. Executes nothing, changes no state.
    fn begin_capture(&mut self) -> Result<()>;
    /// Ends the recording; `keep` installs it in place of an older one, else it is dropped.
    fn end_capture(&mut self, keep: bool) -> Result<()>;
    /// Runs the recorded step; an error where what it captured has changed.
    fn replay(&mut self) -> Result<()>;
    /// Drops the recorded step, after the device has finished with it.
    fn drop_graph(&mut self);
    /// Whether a step is recorded.
    fn has_graph(&self) -> bool;

    /// The memory that a backbone's step reads and writes; an error where the host has nothing to write to it directly.
    /// Staged data go there first.
    fn device_buffers(&mut self) -> Result<DeviceBuffers<'_>>;
    /// Temporal output `[B, T, d_model]` of the last forward. Waits.
    fn read_temporal(&mut self, out: &mut [f32]) -> Result<()>;
    /// Gradient of the input of the last backward, unscaled; only where the session asked for it. Waits.
    fn input_gradient(&mut self) -> Result<Cow<'_, [f32]>>;
    /// An arena. Waits.
    fn read(&mut self, arena: Arena) -> Result<Cow<'_, [f32]>>;
    /// Overwrites an arena.
    fn write(&mut self, arena: Arena, data: &[f32]) -> Result<()>;
    /// The carried state. Waits.
    fn recurrence(&mut self) -> Result<RecurrentState>;
    /// Replaces the carried state; `None`: the empty state.
    fn set_recurrence(&mut self, state: Option<&RecurrentState>) -> Result<()>;
    /// Replaces the number of applied steps and forgets the last outcome.
    fn set_step_count(&mut self, step: u64) -> Result<()>;
    /// Replaces the counts of skipped windows.
    fn set_skips(&mut self, skips: SkipCounter) -> Result<()>;
    /// Norms of the last applied windows, oldest first. Waits.
    fn norms(&mut self) -> Result<Vec<f64>>;
    /// Replaces them; they were checked.
    fn set_norms(&mut self, norms: &[f64]) -> Result<()>;
    /// State of the loss scaler, `None` where the precision has none. Waits.
    fn scaler(&mut self) -> Result<Option<ScalerState>>;
    /// Replaces the state of the loss scaler; an error where one side has none or it is out of bounds.
    fn set_scaler(&mut self, state: Option<ScalerState>) -> Result<()>;
    /// Checks what `set_scaler` would check.
    fn check_scaler(&self, state: Option<ScalerState>) -> Result<()>;
    /// Switches the no-decay groups.
    fn set_reference_no_decay(&mut self, on: bool) -> Result<()>;

    /// Sums the gradient arena, the window's loss sums and `extra` over the ranks, in rank order. May wait, up to
    /// the group's deadline. On an error the arena and `extra` are as before.
    fn all_reduce(&mut self, group: &DistContext, extra: &mut [f64]) -> Result<()>;
    /// Loss of one window from the empty state; leaves training state, arena and pending outcome alone. Waits.
    fn evaluate(
        &mut self,
        input: ModelInput<'_>,
        reset: Option<&[u8]>,
        targets: &[i32],
        weights: Option<&[f32]>,
    ) -> Result<LossSums>;
}

/// Builds the engine of a device.
pub(crate) fn open(config: EngineConfig) -> Result<Box<dyn Engine>> {
    let EngineConfig { ctx, .. } = &config;
    check_available(ctx.device, ctx.dtype, ctx.gemm_mode)?;
    match ctx.device {
        Device::Cpu => Ok(Box::new(cpu::CpuEngine::new(config)?)),
        Device::Cuda(ordinal) => cuda::open(config, ordinal),
    }
}

/// Refuses a precision or mode that a device does not have, by name.
pub(crate) fn check_available(device: Device, dtype: WeightDtype, mode: GemmMode) -> Result<()> {
    match (device, dtype, mode) {
        (Device::Cpu, WeightDtype::F32, GemmMode::Deterministic) => Ok(()),
        (Device::Cpu, WeightDtype::F32, _) => {
            Err(unavailable("gemm mode", mode.to_string(), "deterministic on the cpu"))
        }
        (Device::Cpu, ..) => Err(unavailable("dtype", dtype.to_string(), "f32 on the cpu")),
        (Device::Cuda(_), WeightDtype::Tf32, GemmMode::CublasPedantic) => {
            Err(unavailable("gemm mode", mode.to_string(), "deterministic and cublas-fast in tf32"))
        }
        (Device::Cuda(_), ..) => Ok(()),
    }
}

pub(crate) fn unavailable(
    what: &'static str,
    requested: String,
    available: impl Into<String>,
) -> TrainerError {
    TrainerError::NotAvailable { what, requested, available: available.into() }
}
