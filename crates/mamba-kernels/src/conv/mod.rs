//! Causal depthwise convolution with SiLU: `kernels/conv`.

mod causal_conv1d;

pub use causal_conv1d::{ConvArgs, ConvBackward, ConvForward, ConvShape, MAX_WIDTH};
