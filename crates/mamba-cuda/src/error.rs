/// What can go wrong between this process and a GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// No CUDA driver library on this machine.
    #[error("no NVIDIA driver found; install one, or choose the CPU")]
    NoDriver,
    /// The driver cannot run the PTX of this build.
    #[error(
        "the NVIDIA driver supports CUDA {found}, version {needed} or newer is needed: update the driver"
    )]
    OldDriver {
        /// Version the driver reports, e.g. `12.4`.
        found: String,
        /// Version that is needed.
        needed: &'static str,
    },
    /// The driver is there, but no GPU.
    #[error("the NVIDIA driver finds no GPU; choose the CPU")]
    NoDevice,
    /// No GPU of this ordinal.
    #[error("no GPU {ordinal}: this machine has {count}, numbered from 0")]
    BadOrdinal {
        /// The ordinal asked for.
        ordinal: usize,
        /// How many GPUs there are.
        count: usize,
    },
    /// The GPU is older than the kernels.
    #[error("GPU {ordinal} ({name}) has compute capability {major}.{minor}; 8.0 or newer is needed")]
    OldDevice {
        /// Its ordinal.
        ordinal: usize,
        /// Its name.
        name: String,
        /// Compute capability, major part.
        major: i32,
        /// Compute capability, minor part.
        minor: i32,
    },
    /// Not enough device memory.
    #[error(
        "{bytes} bytes of device memory wanted, {free} of {total} are free; use a smaller batch, or recompute"
    )]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes free.
        free: usize,
        /// Bytes the device has.
        total: usize,
    },
    /// An allocation while a graph is being captured.
    #[error(
        "{bytes} bytes of device memory wanted while a graph is being captured; allocate before capturing"
    )]
    AllocationInCapture {
        /// Bytes asked for.
        bytes: usize,
    },
    /// cuBLASLt is not on this machine.
    #[error(
        "libcublasLt was not found: install it (CUDA 13 toolkit, or `pip install nvidia-cublas` and its `lib` folder \
         in LD_LIBRARY_PATH), or choose the deterministic products"
    )]
    NoBlasLt,
    /// A call of cuBLASLt failed.
    #[error("{call}: cuBLASLt status {status}")]
    BlasLt {
        /// What was tried.
        call: &'static str,
        /// The library's status.
        status: String,
    },
    /// A product whose operand does not fit its sizes.
    #[error("product {m}x{n}x{k}: `{operand}` holds {got} elements with rows {ld} apart, {need} are needed")]
    BlasOperand {
        /// Rows of the result.
        m: usize,
        /// Columns of the result.
        n: usize,
        /// Length of the sums.
        k: usize,
        /// Which operand.
        operand: &'static str,
        /// Elements between its rows.
        ld: usize,
        /// Elements it holds.
        got: usize,
        /// Elements needed.
        need: usize,
    },
    /// A range outside a buffer.
    #[error("elements {start}..{end} wanted of a device buffer of {len}")]
    Range {
        /// First element.
        start: usize,
        /// One past the last element.
        end: usize,
        /// Elements of the buffer.
        len: usize,
    },
    /// Two sides of a copy with different lengths.
    #[error("copy of {src} elements to {dst}")]
    CopyLength {
        /// Elements of the source.
        src: usize,
        /// Elements of the destination.
        dst: usize,
    },
    /// A kernel whose parameters are not what the launcher passes.
    #[error("kernel `{kernel}`: parameter {index} has {found} bytes, the launcher passes {expected}")]
    Parameter {
        /// Mangled kernel name.
        kernel: String,
        /// Index of the parameter.
        index: usize,
        /// Bytes in the kernel; 0 where it has no such parameter.
        found: usize,
        /// Bytes passed.
        expected: usize,
    },
    /// A call of the driver failed.
    #[error("{call}: CUDA error {code} ({message})")]
    Driver {
        /// What was tried.
        call: &'static str,
        /// The driver's code.
        code: i32,
        /// The driver's text.
        message: String,
    },
}

/// Result with [`CudaError`].
pub type Result<T> = std::result::Result<T, CudaError>;
