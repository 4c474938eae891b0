//! Finding and opening a GPU.

use crate::driver::check;
use crate::error::{CudaError, Result};
use crate::stream::Stream;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use std::sync::{Arc, Mutex};

/// PTX of CUDA 13.0 needs a driver that knows it.
const DRIVER_VERSION: i32 = 13_000;

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, from 0.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability (major, minor).
    pub capability: (i32, i32),
    /// Streaming multiprocessors. For choosing the number of persistent blocks only: no result may depend on it.
    pub multiprocessors: usize,
    /// Device memory in bytes.
    pub memory: usize,
}

/// The GPUs of this machine.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::OldDriver`], [`CudaError::NoDevice`]; never panics on a machine without one.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let count = device_count()?;
    (0..count).map(device_info).collect()
}

fn device_count() -> Result<usize> {
    // SAFETY: only asks whether the driver's library can be opened.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let (mut version, mut count) = (0, 0);
    // SAFETY: the library is present; `version` and `count` are valid places for the answers.
    unsafe {
        match sys::cuInit(0) {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => return Err(CudaError::NoDevice),
            sys::CUresult::CUDA_ERROR_STUB_LIBRARY => return Err(CudaError::NoDriver),
            code => check(code, "cuInit")?,
        }
        check(sys::cuDriverGetVersion(&mut version), "cuDriverGetVersion")?;
        check(sys::cuDeviceGetCount(&mut count), "cuDeviceGetCount")?;
    }
    if version < DRIVER_VERSION {
        let found = format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(CudaError::OldDriver { found, needed: "13.0" });
    }
    match count {
        0 => Err(CudaError::NoDevice),
        n => Ok(n.unsigned_abs() as usize),
    }
}

fn device_info(ordinal: usize) -> Result<DeviceInfo> {
    let mut device = 0;
    let mut name = [0u8; 128];
    let mut memory = 0;
    let attribute = |device, which| {
        let mut value = 0;
        // SAFETY: `value` is a valid place for the answer and `device` came from the driver.
        check(unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) }, "cuDeviceGetAttribute")?;
        Ok::<i32, CudaError>(value)
    };
    // SAFETY: every pointer is a valid place for the answer; the name buffer's length is passed.
    unsafe {
        check(sys::cuDeviceGet(&mut device, ordinal as i32), "cuDeviceGet")?;
        check(
            sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32 - 1, device),
            "cuDeviceGetName",
        )?;
        check(sys::cuDeviceTotalMem_v2(&mut memory, device), "cuDeviceTotalMem")?;
    }
    let length = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    Ok(DeviceInfo {
        ordinal,
        name: String::from_utf8_lossy(&name[..length]).into_owned(),
        capability: (
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?
            .unsigned_abs() as usize,
        memory,
    })
}

/// The primary context of a GPU, retained while this lives. Errors of destructors are parked here and returned by the
/// next call that can return one.
pub(crate) struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    parked: Mutex<Option<CudaError>>,
}

// SAFETY: a CUDA context may be used from any thread; `bind` makes it current before each use.
unsafe impl Send for Context {}
// SAFETY: as above; the driver synchronises its own calls.
unsafe impl Sync for Context {}

impl Context {
    /// Makes the context current on this thread.
    pub(crate) fn bind(&self) -> Result<()> {
        if let Some(error) = self.parked.lock().ok().and_then(|mut slot| slot.take()) {
            return Err(error);
        }
        // SAFETY: `raw` is retained until drop.
        check(unsafe { sys::cuCtxSetCurrent(self.raw) }, "cuCtxSetCurrent")
    }

    /// Keeps the error of a destructor for the next call.
    pub(crate) fn park(&self, result: Result<()>) {
        if let (Err(error), Ok(mut slot)) = (result, self.parked.lock()) {
            slot.get_or_insert(error);
        }
    }

    /// Bytes (free, total).
    pub(crate) fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places for the answers; the context is current.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "cuMemGetInfo")?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: balances the retain in `Gpu::open`. An error here has nobody left to tell.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// An open GPU with a stream for computing and one for copies.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) context: Arc<Context>,
    info: Arc<DeviceInfo>,
    compute: Stream,
    copy: Stream,
}

impl Gpu {
    /// Opens the GPU of this ordinal.
    ///
    /// # Errors
    /// Those of [`devices`], [`CudaError::BadOrdinal`], [`CudaError::OldDevice`].
    pub fn open(ordinal: usize) -> Result<Self> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(CudaError::BadOrdinal { ordinal, count });
        }
        let info = device_info(ordinal)?;
        if info.capability.0 < 8 {
            let (major, minor) = info.capability;
            return Err(CudaError::OldDevice { ordinal, name: info.name, major, minor });
        }
        let (mut device, mut raw) = (0, std::ptr::null_mut());
        // SAFETY: both are valid places for the answers; the ordinal exists.
        unsafe {
            check(sys::cuDeviceGet(&mut device, ordinal as i32), "cuDeviceGet")?;
            check(sys::cuDevicePrimaryCtxRetain(&mut raw, device), "cuDevicePrimaryCtxRetain")?;
        }
        let context = Arc::new(Context { device, raw, parked: Mutex::new(None) });
        context.bind()?;
        let (compute, copy) = (Stream::new(&context)?, Stream::new(&context)?);
        Ok(Self { context, info: Arc::new(info), compute, copy })
    }

    /// What this GPU is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The stream that kernels run on.
    pub fn compute(&self) -> &Stream {
        &self.compute
    }

    /// The stream that uploads run on.
    pub fn copy(&self) -> &Stream {
        &self.copy
    }

    /// Device memory in bytes: (free, total).
    ///
    /// # Errors
    /// Those of the driver.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.context.memory()
    }

    /// Makes the GPU current on this thread; kernels' owners that call the driver themselves need it.
    ///
    /// # Errors
    /// Those of the driver, and errors that destructors parked.
    pub fn bind(&self) -> Result<()> {
        self.context.bind()
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("info", &self.info).finish_non_exhaustive()
    }
}
