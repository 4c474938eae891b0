//! Trains Mamba models: one contract for every device and precision.
//!
//! [`MambaTrainer`] trains a backbone from the gradient of its output; [`LmTrainer`] trains a language model on its
//! cross-entropy. Both are [`Trainer`]s over one state machine: fused steps, split steps, accumulation windows,
//! clips and skips, captured graphs, training-state files, groups of ranks.
//!
//! ```
//! use mamba_trainer::{MambaConfig, MambaTrainer, MambaWeights, ModelConfig, TrainSessionCfg, Device, WeightDtype};
//!
//! # fn main() -> mamba_trainer::Result<()> {
//! let config = ModelConfig::backbone(MambaConfig::new(16, 2).with_input_dim(3));
//! let weights = MambaWeights::init(&config, 7)?;
//! let session = TrainSessionCfg::new(3, 2, 8); // input width, batch, tokens
//! let mut trainer = MambaTrainer::new_full(weights, session, WeightDtype::F32, Device::Cpu)?;
//!
//! let input = vec![0.5; 2 * 8 * 3];
//! let mut temporal = vec![0.0; 2 * 8 * 16];
//! trainer.forward(&input, &mut temporal)?;
//! // Loss: half the sum of squares, so its gradient is the output itself.
//! let metrics = trainer.backward_step(&temporal, Default::default())?;
//! assert!(metrics.optimizer_stepped && metrics.step == 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Code map
//!
//! | module | what it holds |
//! |---|---|
//! | `session`, `builder` | sizes, precision, device; one builder behind every constructor |
//! | `trainer`, `lm` | the public calls |
//! | `contract` | the state machine: pending forwards, windows, options, errors |
//! | `step`, `capture` | the order of a step, once; recording it |
//! | `engine` | what a device must be able to do; the CPU and GPUs doing it |
//! | `decoder` | inference, token by token |
//! | `device_buffers` | steps whose data is already on a GPU |
//! | `metrics` | options of a step and what it reports |
//! | `snapshot`, `state` | reading and replacing a trainer's state; the training-state file |
//! | `dist` | groups of ranks |
//!
//! # Invariants
//!
//! - **An error changes nothing.** Arguments and order of calls are checked before a device is touched. Exceptions,
//!   each documented at its call: a failed `forward` cancels a pending one; a failed exchange between ranks leaves the
//!   local gradient in the open window; one skip too many is reported by the call that has skipped.
//! - **Same bits.** Fused = split = replayed = resumed; a window closed by its last micro-batch = one closed by
//!   `apply_step`; any number of threads.
//! - **Nothing is hidden.** A step that moves nothing says why; NaN and Inf are skipped in the open or reach the
//!   weights in the open, as chosen.
//! - **No call waits for a device** unless it returns what only the device knows.

mod builder;
mod capture;
mod contract;
mod decoder;
mod device_buffers;
mod dist;
mod engine;
mod error;
mod lm;
mod metrics;
mod session;
mod snapshot;
mod state;
mod step;
mod trainer;

pub use builder::TrainerBuilder;
pub use contract::TrainerContext;
pub use decoder::Decoder;
pub use device_buffers::DeviceBuffers;
pub use dist::DistContext;
pub use error::{Result, TrainerError};
pub use lm::{LanguageModel, LmTrainer, TokenBatch};
pub use metrics::{
    BackwardMetrics, BackwardOpts, LmStepMetrics, MicroBatchMetrics, NonFiniteGradient, StepMetrics,
    StepOpts, Verdict, WindowOutcome,
};
pub use session::{Device, GemmMode, TrainSessionCfg, WeightDtype};
pub use state::TrainingState;
pub use trainer::{Backbone, MambaTrainer, ModelKind, Trainer};

/// The device layer, for [`DeviceBuffers`].
pub use mamba_cuda as cuda;
pub use mamba_model::{
    IGNORE_INDEX, LmHeadConfig, LossSums, MambaConfig, MambaWeights, ModelConfig, RecurrentState,
};
pub use mamba_optim::{AdamWConfig, AdamWState, NonFinite, ScalerConfig, ScalerState, SkipCounter};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<MambaTrainer>();
    is_send::<LmTrainer>();
    is_send::<DistContext>();
    is_send::<TrainerError>();
};
