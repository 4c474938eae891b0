//! The one place that starts kernels.

use crate::driver::check;
use crate::error::{CudaError, Result};
use crate::module::Function;
use crate::stream::Stream;
use cudarc::driver::sys;

/// Blocks, threads and dynamic shared memory of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory in bytes.
    pub shared: u32,
}

/// Parameters of a launch, each copied to 16-byte (or, for tensor maps, 128-byte) aligned storage.
#[derive(Debug, Default)]
pub struct Params {
    storage: Vec<Slot>,
    slots: Vec<usize>,
}

#[repr(C, align(128))]
#[derive(Debug, Clone, Copy)]
struct Slot([u8; 128]);

impl Params {
    /// Adds the bytes of one parameter.
    pub fn push(&mut self, bytes: &[u8]) {
        self.slots.push(self.storage.len());
        for chunk in bytes.chunks(128) {
            let mut slot = Slot([0; 128]);
            slot.0[..chunk.len()].copy_from_slice(chunk);
            self.storage.push(slot);
        }
    }
}

/// Starts `function` on `stream`.
///
/// # Safety
/// The parameters must be what the kernel takes, in its order, and every address among them must be device memory that
/// is large enough and stays alive until the kernel has run; a captured launch: until the graph is dropped.
///
/// # Errors
/// [`CudaError::Parameter`] for another number of parameters, those of the driver.
pub unsafe fn launch(function: &Function, dims: Dims, params: &mut Params, stream: &Stream) -> Result<()> {
    if params.slots.len() != function.parameters {
        let (found, expected) = (function.parameters, params.slots.len());
        return Err(CudaError::Parameter {
            kernel: format!("{function:?}"),
            index: expected,
            found,
            expected,
        });
    }
    function.context().bind()?;
    let mut pointers: Vec<*mut std::ffi::c_void> =
        params.slots.iter().map(|&slot| std::ptr::from_mut(&mut params.storage[slot]).cast()).collect();
    let [x, y, z] = dims.grid;
    let none = std::ptr::null_mut();
    // SAFETY: as many pointers as parameters, each to the bytes of its parameter; the rest is the caller's promise.
    let code = unsafe {
        sys::cuLaunchKernel(
            function.raw,
            x,
            y,
            z,
            dims.block,
            1,
            1,
            dims.shared,
            stream.raw(),
            pointers.as_mut_ptr(),
            none,
        )
    };
    check(code, "cuLaunchKernel")
}
