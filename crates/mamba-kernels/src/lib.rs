//! CUDA kernels of Mamba training as PTX, with typed, checked launchers.
//!
//! One kernel family a `.cu` file in `kernels/`, its launcher in the module of the same path here. A launcher is a struct
//! of named arguments, declared with [`kernel!`]: the C++ signature is derived from the fields and compared with the PTX.
//! [`Kernels`] holds what a device has loaded; `Launch::launch` checks lengths and starts the kernel on the device's
//! compute stream.
//!
//! Bits depend on shapes only: no float atomics, fixed partitions, ordered folds.

mod elem;
mod error;
mod kernel;
mod ptx_index;
mod registry;

pub mod conv;
pub mod elementwise;
pub mod embedding;
pub mod fold;
pub mod gemm;
pub mod loss;
pub mod norm;
pub mod optim;
pub mod scan;

pub use elem::{CppType, Elem};
pub use error::{KernelError, Result};
pub use kernel::{Arg, Kernel, Launch, Val, ensure, need};
pub use registry::{KernelTime, Kernels, entries};
