//! AdamW, clipping, loss scaling and schedules over flat `f32` arenas.
//!
//! This crate knows no model. Parameters, gradients and both moments are one slice each; a
//! [`ParamGroups`] says which ranges are tensors, what they are called and whether they decay. One call,
//! [`run_tail`], takes a finished gradient to updated weights, or says why it did not.
//!
//! # Code map
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | [`AdamWConfig`], [`StepOptions`]: checked settings |
//! | [`groups`] | [`ParamGroups`], [`ControlSpans`]: names, decay groups, spans |
//! | [`grads`] | norm, unscaling, search for the first bad tensor |
//! | [`clip`], [`skip`] | clip coefficient; spike rule, skip counter |
//! | [`norms`] | [`NormWindow`]: norms of the last steps, the running z-score |
//! | [`scaler`] | [`LossScaler`] with the semantics of PyTorch's `GradScaler` |
//! | [`schedule`] | constant, linear warm-up, cosine, warm-up–stable–decay |
//! | [`scalars`] | [`StepScalars`]: the numbers of a step, as a device buffer holds them |
//! | [`adamw`] | the fused update |
//! | [`tail`] | the order of it all: [`run_tail`], [`StepOutcome`] |
//! | [`optimizer`] | [`Optimizer`]: all of it in one object |
//! | [`cuda`] | [`DeviceTail`](cuda::DeviceTail): the same tail on a GPU, over the caller's device memory |
//!
//! # Invariants
//!
//! - **Same bits everywhere.** Sums run in an order that lengths alone fix, nothing is fused, powers and cosines
//!   are computed by code of this crate and of `libm`: thread counts, vector widths and machines do not show.
//! - **A skipped or failed step changes nothing** but the loss scaler and the skip counter.
//! - **NaN and Inf stay visible.** No comparison, clip or bound turns them into a finite number.
//! - **Hyper-parameters are `f64`** until [`StepScalars`] rounds each to `f32` once.

pub mod adamw;
pub mod clip;
pub mod config;
pub mod cuda;
mod error;
pub mod grads;
pub mod groups;
pub mod norms;
pub mod optimizer;
pub mod scalars;
pub mod scaler;
pub mod schedule;
pub mod skip;
pub mod tail;

pub use adamw::{AdamWArenas, AdamWState, adamw_update};
pub use clip::{clip_coefficient, clip_control_spans};
pub use config::{AdamWConfig, NonFinite, StepOptions};
pub use error::OptimError;
pub use grads::{NonFiniteAt, first_non_finite, global_norm, unscale};
pub use groups::{ControlSpans, ParamGroups, ParamSpan, Segment, StridedSpan};
pub use norms::{NormWindow, NormWindowConfig};
pub use optimizer::{Optimizer, OptimizerState};
pub use scalars::{StepScalars, bias_correction};
pub use scaler::{LossScaler, ScalerConfig, ScalerState};
pub use schedule::{DecayShape, Schedule, ScheduleKind};
pub use skip::SkipCounter;
pub use tail::{StepOutcome, TailArenas, run_tail};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
