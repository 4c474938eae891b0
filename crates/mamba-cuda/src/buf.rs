//! Device memory: owned buffers and length-checked views.

use crate::driver::check;
use crate::error::{CudaError, Result};
use crate::gpu::{Context, Gpu};
use crate::graph;
use crate::stream::Stream;
use bytemuck::Pod;
use cudarc::driver::sys;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Device memory for `len` elements, aligned to 256 bytes.
pub struct DeviceBuf<T> {
    ptr: sys::CUdeviceptr,
    len: usize,
    context: Arc<Context>,
    _element: PhantomData<T>,
}

// SAFETY: device memory may be used from any thread; access goes through streams.
unsafe impl<T: Send> Send for DeviceBuf<T> {}

impl<T: Pod> DeviceBuf<T> {
    /// Memory whose content is whatever was there.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::AllocationInCapture`], those of the driver.
    pub fn uninit(gpu: &Gpu, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(CudaError::OutOfMemory {
            bytes: usize::MAX,
            free: 0,
            total: 0,
        })?;
        if graph::capturing() {
            return Err(CudaError::AllocationInCapture { bytes });
        }
        let context = gpu.context.clone();
        context.bind()?;
        let mut ptr = 0;
        // SAFETY: `ptr` is a valid place for the answer; the context is current. Empty buffers take one byte.
        match unsafe { sys::cuMemAlloc_v2(&mut ptr, bytes.max(1)) } {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = context.memory()?;
                Err(CudaError::OutOfMemory { bytes, free, total })
            }
            code => check(code, "cuMemAlloc").map(|()| Self { ptr, len, context, _element: PhantomData }),
        }
    }

    /// Zeroed memory.
    ///
    /// # Errors
    /// Those of [`DeviceBuf::uninit`].
    pub fn zeros(gpu: &Gpu, len: usize) -> Result<Self> {
        let mut buf = Self::uninit(gpu, len)?;
        buf.view_mut().fill_bytes(0, gpu.compute())?;
        Ok(buf)
    }

    /// A copy of host data; waits for the copy.
    ///
    /// # Errors
    /// Those of [`DeviceBuf::uninit`].
    pub fn from_host(gpu: &Gpu, data: &[T]) -> Result<Self> {
        let mut buf = Self::uninit(gpu, data.len())?;
        buf.view_mut().write(data, gpu.compute())?;
        Ok(buf)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, to read.
    pub fn view(&self) -> View<'_, T> {
        View { ptr: self.ptr, len: self.len, _borrow: PhantomData }
    }

    /// All of it, to write.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut { ptr: self.ptr, len: self.len, _borrow: PhantomData }
    }

    /// A host copy; waits for the stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn to_host(&self, stream: &Stream) -> Result<Vec<T>> {
        let mut host = vec![T::zeroed(); self.len];
        self.view().read(&mut host, stream)?;
        Ok(host)
    }
}

impl<T> Drop for DeviceBuf<T> {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated in `uninit`; cuMemFree waits for work that uses it.
        let free = || unsafe { check(sys::cuMemFree_v2(self.ptr), "cuMemFree") };
        self.context.park(self.context.bind().and_then(|()| free()));
    }
}

impl<T> std::fmt::Debug for DeviceBuf<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceBuf<{}>({})", std::any::type_name::<T>(), self.len)
    }
}

/// Device memory to read.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, T> {
    ptr: sys::CUdeviceptr,
    len: usize,
    _borrow: PhantomData<&'a T>,
}

/// Device memory to write.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    ptr: sys::CUdeviceptr,
    len: usize,
    _borrow: PhantomData<&'a mut T>,
}

fn check_range(range: &Range<usize>, len: usize) -> Result<()> {
    match range.start <= range.end && range.end <= len {
        true => Ok(()),
        false => Err(CudaError::Range { start: range.start, end: range.end, len }),
    }
}

impl<'a, T: Pod> View<'a, T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// The same view where `U` is the type `T`.
    pub fn cast<U: Pod>(self) -> Option<View<'a, U>> {
        let same = std::any::TypeId::of::<T>() == std::any::TypeId::of::<U>();
        same.then_some(View { ptr: self.ptr, len: self.len, _borrow: PhantomData })
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn slice(&self, range: Range<usize>) -> Result<View<'a, T>> {
        check_range(&range, self.len)?;
        let ptr = self.ptr + (range.start * size_of::<T>()) as u64;
        Ok(View { ptr, len: range.len(), _borrow: PhantomData })
    }

    /// Copies to the host; waits for the stream.
    ///
    /// # Errors
    /// [`CudaError::CopyLength`], those of the driver.
    pub fn read(&self, host: &mut [T], stream: &Stream) -> Result<()> {
        if host.len() != self.len {
            return Err(CudaError::CopyLength { src: self.len, dst: host.len() });
        }
        stream.context().bind()?;
        // SAFETY: both sides hold `len` elements, and the wait below outlives the copy.
        let code = unsafe {
            sys::cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), self.ptr, size_of_val(host), stream.raw())
        };
        check(code, "cuMemcpyDtoHAsync")?;
        stream.synchronize()
    }
}

impl<'a, T: Pod> ViewMut<'a, T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// The same memory, to read.
    pub fn as_view(&self) -> View<'_, T> {
        View { ptr: self.ptr, len: self.len, _borrow: PhantomData }
    }

    /// The same view where `U` is the type `T`.
    pub fn cast<U: Pod>(self) -> Option<ViewMut<'a, U>> {
        let same = std::any::TypeId::of::<T>() == std::any::TypeId::of::<U>();
        same.then_some(ViewMut { ptr: self.ptr, len: self.len, _borrow: PhantomData })
    }

    /// The same memory for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut { ptr: self.ptr, len: self.len, _borrow: PhantomData }
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn slice(self, range: Range<usize>) -> Result<ViewMut<'a, T>> {
        check_range(&range, self.len)?;
        let ptr = self.ptr + (range.start * size_of::<T>()) as u64;
        Ok(ViewMut { ptr, len: range.len(), _borrow: PhantomData })
    }

    /// Two parts that do not touch: before and from `mid` on.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn split_at(self, mid: usize) -> Result<(ViewMut<'a, T>, ViewMut<'a, T>)> {
        check_range(&(mid..self.len), self.len)?;
        let ptr = self.ptr + (mid * size_of::<T>()) as u64;
        let left = ViewMut { ptr: self.ptr, len: mid, _borrow: PhantomData };
        Ok((left, ViewMut { ptr, len: self.len - mid, _borrow: PhantomData }))
    }

    /// Fills every byte with `byte`, asynchronously. 0xFF makes every float a NaN.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn fill_bytes(&mut self, byte: u8, stream: &Stream) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        stream.context().bind()?;
        let bytes = self.len * size_of::<T>();
        // SAFETY: the view covers `bytes` bytes.
        check(unsafe { sys::cuMemsetD8Async(self.ptr, byte, bytes, stream.raw()) }, "cuMemsetD8Async")
    }

    /// Copies from the host; waits for the stream.
    ///
    /// # Errors
    /// [`CudaError::CopyLength`], those of the driver.
    pub fn write(&mut self, host: &[T], stream: &Stream) -> Result<()> {
        if host.len() != self.len {
            return Err(CudaError::CopyLength { src: host.len(), dst: self.len });
        }
        if self.len == 0 {
            return Ok(());
        }
        stream.context().bind()?;
        // SAFETY: both sides hold `len` elements, and the wait below outlives the copy.
        let code = unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.ptr, host.as_ptr().cast(), size_of_val(host), stream.raw())
        };
        check(code, "cuMemcpyHtoDAsync")?;
        stream.synchronize()
    }

    /// Copies from other device memory, asynchronously.
    ///
    /// # Errors
    /// [`CudaError::CopyLength`], those of the driver.
    pub fn copy_from(&mut self, src: View<'_, T>, stream: &Stream) -> Result<()> {
        if src.len != self.len {
            return Err(CudaError::CopyLength { src: src.len, dst: self.len });
        }
        if self.len == 0 {
            return Ok(());
        }
        stream.context().bind()?;
        let bytes = self.len * size_of::<T>();
        // SAFETY: both sides cover `bytes` bytes and cannot overlap: one is borrowed exclusively.
        check(
            unsafe { sys::cuMemcpyDtoDAsync_v2(self.ptr, src.ptr, bytes, stream.raw()) },
            "cuMemcpyDtoDAsync",
        )
    }
}
