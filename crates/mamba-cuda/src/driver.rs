//! Return codes of the driver.

use crate::error::{CudaError, Result};
use cudarc::driver::sys;
use std::ffi::CStr;

/// Turns a return code into a result that names the call.
pub(crate) fn check(code: sys::CUresult, call: &'static str) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: `text` is a valid place for a pointer; the driver stores a static string or null.
    let found =
        unsafe { sys::cuGetErrorString(code, &mut text) } == sys::CUresult::CUDA_SUCCESS && !text.is_null();
    let message = match found {
        // SAFETY: the driver's error texts are static, null-terminated strings.
        true => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        false => "no text".to_owned(),
    };
    Err(CudaError::Driver { call, code: code as i32, message })
}
