//! Mamba models: configuration, weights, files, forward and backward.
//!
//! Code map, in the data's order:
//! - [`config`]: sizes and options of a model; [`params`]: the one table of its tensors, their initial values and
//!   the flat arena that holds them;
//! - [`input`], [`state`]: what goes into a forward pass and what is carried to the next;
//! - [`files`]: safetensors, Hugging Face and state-spaces checkpoints in and out;
//! - [`oracle`]: the model in f64, short and obvious, the truth of every test;
//! - [`cpu`]: the fast f32 engine; [`cuda`]: the same on NVIDIA GPUs, in every precision.
//!
//! Conventions: row-major, tokens outermost (`[B, T, channels]`); linears are `[in, out]`; a backward pass adds to
//! gradients and overwrites activations.

pub mod config;
pub mod cpu;
pub mod cuda;
mod error;
pub mod files;
pub mod input;
pub mod oracle;
pub mod params;
pub mod rng;
pub mod state;

pub use config::{LmHeadConfig, MambaConfig, ModelConfig};
pub use error::{ModelError, Result};
pub use input::{IGNORE_INDEX, LossSums, ModelInput};
pub use params::{MambaWeights, ParamTable};
pub use state::RecurrentState;
