//! Host memory that the device copies from and to without an intermediate copy.

use crate::buf::{View, ViewMut};
use crate::driver::check;
use crate::error::{CudaError, Result};
use crate::gpu::{Context, Gpu};
use crate::stream::Stream;
use bytemuck::Pod;
use cudarc::driver::sys;
use std::marker::PhantomData;
use std::sync::Arc;

struct Pinned<T> {
    ptr: *mut T,
    len: usize,
    context: Arc<Context>,
    _element: PhantomData<T>,
}

// SAFETY: owned host memory; nothing ties it to a thread.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    fn new(gpu: &Gpu, len: usize, flags: u32) -> Result<Self> {
        let context = gpu.context.clone();
        context.bind()?;
        let bytes = (len * size_of::<T>()).max(1);
        let mut ptr = std::ptr::null_mut();
        // SAFETY: `ptr` is a valid place for the answer; the context is current.
        check(unsafe { sys::cuMemHostAlloc(&mut ptr, bytes, flags) }, "cuMemHostAlloc")?;
        let pinned = Self { ptr: ptr.cast(), len, context, _element: PhantomData };
        // SAFETY: the allocation has `bytes` bytes, and zeros are a value of every Pod type.
        unsafe { std::ptr::write_bytes(pinned.ptr.cast::<u8>(), 0, bytes) };
        Ok(pinned)
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; owners wait for copies in flight before they drop it.
        let free = || unsafe { check(sys::cuMemFreeHost(self.ptr.cast()), "cuMemFreeHost") };
        self.context.park(self.context.bind().and_then(|()| free()));
    }
}

/// Write-combined pinned memory: fast to fill in order, only for uploads.
pub struct PinnedUpload<T>(Pinned<T>);

impl<T: Pod> PinnedUpload<T> {
    /// Memory for `len` elements.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        Pinned::new(gpu, len, sys::CU_MEMHOSTALLOC_WRITECOMBINED).map(Self)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Fills the first elements. The caller has made sure that no upload still reads them.
    ///
    /// # Errors
    /// [`CudaError::Range`].
    pub fn fill(&mut self, data: &[T]) -> Result<()> {
        if data.len() > self.0.len {
            return Err(CudaError::Range { start: 0, end: data.len(), len: self.0.len });
        }
        // SAFETY: the lengths were compared; the memory is owned, initialised and exclusively borrowed.
        let target = unsafe { std::slice::from_raw_parts_mut(self.0.ptr, data.len()) };
        target.copy_from_slice(data);
        Ok(())
    }

    /// Uploads the first `dst.len()` elements, asynchronously.
    ///
    /// # Errors
    /// [`CudaError::CopyLength`], those of the driver.
    pub fn upload(&self, dst: &mut ViewMut<'_, T>, stream: &Stream) -> Result<()> {
        if dst.len() > self.0.len {
            return Err(CudaError::CopyLength { src: self.0.len, dst: dst.len() });
        }
        if dst.is_empty() {
            return Ok(());
        }
        self.0.context.bind()?;
        let bytes = dst.len() * size_of::<T>();
        // SAFETY: both sides cover `bytes` bytes; the owner keeps this memory until the copy is done.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(dst.ptr(), self.0.ptr.cast(), bytes, stream.raw()) };
        check(code, "cuMemcpyHtoDAsync")
    }
}

/// Cached pinned memory that the device writes to and the host reads.
pub struct PinnedReadback<T>(Pinned<T>);

impl<T: Pod> PinnedReadback<T> {
    /// Memory for `len` elements.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        Pinned::new(gpu, len, 0).map(Self)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Downloads into the first elements, asynchronously.
    ///
    /// # Errors
    /// [`CudaError::CopyLength`], those of the driver.
    pub fn download(&mut self, src: View<'_, T>, stream: &Stream) -> Result<()> {
        if src.len() > self.0.len {
            return Err(CudaError::CopyLength { src: src.len(), dst: self.0.len });
        }
        self.0.context.bind()?;
        let bytes = src.len() * size_of::<T>();
        // SAFETY: both sides cover `bytes` bytes; the owner waits before it reads or drops this memory.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(self.0.ptr.cast(), src.ptr(), bytes, stream.raw()) };
        check(code, "cuMemcpyDtoHAsync")
    }

    /// Downloads into the first elements and waits for them.
    ///
    /// # Errors
    /// [`CudaError::CopyLength`], those of the driver.
    pub fn read(&mut self, src: View<'_, T>, stream: &Stream) -> Result<&[T]> {
        self.download(src, stream)?;
        stream.synchronize()?;
        // SAFETY: `download` compared the lengths and the copy is done; the memory is owned and initialised.
        Ok(unsafe { std::slice::from_raw_parts(self.0.ptr, src.len()) })
    }

    /// One element. The caller has made sure that the download is done.
    pub fn get(&self, index: usize) -> Option<T> {
        // SAFETY: the index is below the length, and the memory is initialised. The device may write to it only until
        // the event that the caller waited for.
        (index < self.0.len).then(|| unsafe { std::ptr::read_volatile(self.0.ptr.add(index)) })
    }
}

impl<T> std::fmt::Debug for PinnedUpload<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedUpload({})", self.0.len)
    }
}

impl<T> std::fmt::Debug for PinnedReadback<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedReadback({})", self.0.len)
    }
}
