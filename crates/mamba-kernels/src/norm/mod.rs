//! RMSNorm with the residual addition before it: `kernels/norm`.

mod rmsnorm;

pub use rmsnorm::{MAX_DIM, RmsNormBackward, RmsNormForward, parts};
