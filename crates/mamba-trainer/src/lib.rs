//! Trains Mamba models: one contract for every device and precision.

mod builder;
mod capture;
mod contract;
mod dist;
mod engine;
mod error;
mod files;
mod lm;
mod metrics;
mod session;
mod snapshot;
mod state;
mod step;
mod trainer;

pub use builder::TrainerBuilder;
pub use contract::TrainerContext;
pub use dist::DistContext;
pub use error::{Result, TrainerError};
pub use lm::{LanguageModel, LmTrainer, TokenBatch};
pub use metrics::{
    BackwardMetrics, BackwardOpts, LmStepMetrics, MicroBatchMetrics, StepMetrics, StepOpts, Verdict,
    WindowOutcome,
};
pub use session::{Device, GemmMode, TrainSessionCfg, WeightDtype};
pub use state::TrainingState;
pub use trainer::{Backbone, MambaTrainer, ModelKind, Trainer};

pub use mamba_model::{IGNORE_INDEX, LossSums, MambaConfig, MambaWeights, ModelConfig, RecurrentState};
pub use mamba_optim::{AdamWState, NonFinite, ScalerConfig, ScalerState};
