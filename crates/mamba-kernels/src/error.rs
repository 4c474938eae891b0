use mamba_cuda::CudaError;

/// Why a kernel was not launched, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A buffer is shorter than the problem needs.
    #[error("{kernel}: `{argument}` holds {got} elements, {need} are needed")]
    Length {
        /// The kernel.
        kernel: &'static str,
        /// The argument.
        argument: &'static str,
        /// Elements it holds.
        got: usize,
        /// Elements needed.
        need: usize,
    },
    /// A size that the kernel does not take.
    #[error("{kernel}: `{argument}` is {got}; it must be {expected}")]
    Size {
        /// The kernel.
        kernel: &'static str,
        /// The argument.
        argument: &'static str,
        /// The value.
        got: u64,
        /// What would be accepted.
        expected: &'static str,
    },
    /// No PTX of this build has the kernel for this device.
    #[error("no kernel `{signature}` for compute capability {major}.{minor} in this build")]
    Missing {
        /// Demangled signature.
        signature: String,
        /// Compute capability, major part.
        major: i32,
        /// Compute capability, minor part.
        minor: i32,
    },
    /// The device failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Result with [`KernelError`].
pub type Result<T> = std::result::Result<T, KernelError>;
