//! PTX modules and their functions.

use crate::driver::check;
use crate::error::{CudaError, Result};
use crate::gpu::{Context, Gpu};
use cudarc::driver::sys;
use std::ffi::CString;
use std::sync::Arc;

/// A loaded module. The driver compiles PTX for the device and keeps the result in its cache.
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    raw: sys::CUmodule,
    context: Arc<Context>,
}

// SAFETY: a CUDA module may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above; it is immutable after loading.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: loaded in `load`; functions hold the module, so none is left.
        let unload = || unsafe { check(sys::cuModuleUnload(self.raw), "cuModuleUnload") };
        self.context.park(self.context.bind().and_then(|()| unload()));
    }
}

impl Module {
    /// Loads PTX text.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn load(gpu: &Gpu, ptx: &str) -> Result<Self> {
        let context = gpu.context.clone();
        context.bind()?;
        let text = CString::new(ptx).map_err(|_| CudaError::Driver {
            call: "cuModuleLoadDataEx",
            code: sys::CUresult::CUDA_ERROR_INVALID_PTX as i32,
            message: "the PTX holds a zero byte".to_owned(),
        })?;
        let mut raw = std::ptr::null_mut();
        let none = std::ptr::null_mut();
        // SAFETY: the text is null-terminated and outlives the call; no options are passed.
        let code = unsafe { sys::cuModuleLoadDataEx(&mut raw, text.as_ptr().cast(), 0, none, none.cast()) };
        check(code, "cuModuleLoadDataEx")?;
        Ok(Self { inner: Arc::new(Inner { raw, context }) })
    }

    /// Finds a kernel and compares its parameters with what the launcher will pass.
    ///
    /// # Errors
    /// [`CudaError::Parameter`], those of the driver.
    pub fn function(&self, name: &str, parameter_bytes: &[usize], dynamic_shared: usize) -> Result<Function> {
        self.inner.context.bind()?;
        let mut raw = std::ptr::null_mut();
        let symbol = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded, the name null-terminated.
        check(
            unsafe { sys::cuModuleGetFunction(&mut raw, self.inner.raw, symbol.as_ptr()) },
            "cuModuleGetFunction",
        )?;
        check_parameters(raw, name, parameter_bytes)?;
        if dynamic_shared > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to the loaded module.
            check(
                unsafe { sys::cuFuncSetAttribute(raw, attribute, dynamic_shared as i32) },
                "cuFuncSetAttribute",
            )?;
        }
        Ok(Function { raw, module: self.inner.clone(), parameters: parameter_bytes.len() })
    }
}

fn check_parameters(raw: sys::CUfunction, name: &str, expected: &[usize]) -> Result<()> {
    for index in 0..=expected.len() {
        let (mut offset, mut found) = (0, 0);
        // SAFETY: both are valid places for the answers.
        let code = unsafe { sys::cuFuncGetParamInfo(raw, index, &mut offset, &mut found) };
        let found = if code == sys::CUresult::CUDA_SUCCESS { found } else { 0 };
        let wanted = expected.get(index).copied().unwrap_or(0);
        if found != wanted {
            return Err(CudaError::Parameter { kernel: name.to_owned(), index, found, expected: wanted });
        }
    }
    Ok(())
}

/// A kernel of a loaded module.
#[derive(Clone)]
pub struct Function {
    pub(crate) raw: sys::CUfunction,
    pub(crate) parameters: usize,
    module: Arc<Inner>,
}

// SAFETY: a function handle is immutable and lives as long as its module, which it holds.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.module.context
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({} parameters)", self.parameters)
    }
}
