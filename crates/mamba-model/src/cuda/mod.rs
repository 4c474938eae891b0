//! Forward and backward on an NVIDIA GPU, in every storage type.
//!
//! [`CudaModel`] owns activations and scratch, [`DeviceBatch`] what a step reads, [`DeviceState`] the recurrence.
//! Parameters and gradients are the caller's arenas, see [`Weights`]. Nothing here waits for the device or allocates
//! after [`CudaModel::new`], so every call can be captured.
//!
//! Code map: `products` multiplies; `forward` and `backward` run one block; `head` is embedding, head and loss; `model`
//! is their order; `decode` runs a trained model token by token.

mod activations;
mod backward;
mod batch;
mod decode;
mod folds;
mod forward;
mod head;
mod model;
mod products;
mod sizes;
mod state;
mod weights;

pub use batch::{DeviceBatch, Resident};
pub use decode::CudaDecoder;
pub use model::{CudaModel, CudaOptions};
pub use products::Arithmetic;
pub use state::DeviceState;
pub use weights::{DeviceWeights, Weights};
