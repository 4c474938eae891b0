//! Uploads that let go of the caller's buffer at once and overlap with computing.

use crate::buf::{DeviceBuf, View, ViewMut};
use crate::error::{CudaError, Result};
use crate::gpu::Gpu;
use crate::pinned::PinnedUpload;
use crate::stream::Event;
use bytemuck::Pod;

/// Two slots of pinned and device memory in front of one device buffer.
///
/// `stage` copies the caller's data to a free slot's pinned memory and starts the upload on the copy stream, while the
/// compute stream still works on the step before. `commit` makes the compute stream wait for that upload and moves the
/// data to the fixed buffer that kernels, and captured graphs, read.
pub struct Staging<T> {
    slots: [Slot<T>; 2],
    next: usize,
    staged: Option<usize>,
    target: DeviceBuf<T>,
    gpu: Gpu,
}

struct Slot<T> {
    host: PinnedUpload<T>,
    device: DeviceBuf<T>,
    uploaded: Event,
    consumed: Event,
}

impl<T: Pod> Staging<T> {
    /// Staging for `len` elements.
    ///
    /// # Errors
    /// Those of the allocations.
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        let slot = || -> Result<Slot<T>> {
            Ok(Slot {
                host: PinnedUpload::new(gpu, len)?,
                device: DeviceBuf::uninit(gpu, len)?,
                uploaded: Event::new(gpu.copy())?,
                consumed: Event::new(gpu.compute())?,
            })
        };
        let target = DeviceBuf::zeros(gpu, len)?;
        Ok(Self { slots: [slot()?, slot()?], next: 0, staged: None, target, gpu: gpu.clone() })
    }

    /// Takes over `data`; the caller may overwrite it as soon as this returns. Waits only where both slots are still
    /// being uploaded.
    ///
    /// # Errors
    /// [`CudaError::CopyLength`], those of the driver.
    pub fn stage(&mut self, data: &[T]) -> Result<()> {
        if data.len() != self.target.len() {
            return Err(CudaError::CopyLength { src: data.len(), dst: self.target.len() });
        }
        // Data that was staged but never committed is replaced.
        let index = self.staged.unwrap_or(self.next);
        let slot = &mut self.slots[index];
        slot.uploaded.synchronize()?;
        slot.host.fill(data)?;
        self.gpu.copy().wait(&slot.consumed)?;
        slot.host.upload(&mut slot.device.view_mut(), self.gpu.copy())?;
        slot.uploaded.record(self.gpu.copy())?;
        self.staged = Some(index);
        Ok(())
    }

    /// Moves the newest staged data to the fixed buffer, in the compute stream's order. Nothing staged: nothing moves.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn commit(&mut self) -> Result<()> {
        let Some(index) = self.staged.take() else { return Ok(()) };
        let slot = &self.slots[index];
        self.gpu.compute().wait(&slot.uploaded)?;
        self.target.view_mut().copy_from(slot.device.view(), self.gpu.compute())?;
        slot.consumed.record(self.gpu.compute())?;
        self.next = 1 - index;
        Ok(())
    }

    /// The fixed buffer.
    pub fn view(&self) -> View<'_, T> {
        self.target.view()
    }

    /// The fixed buffer, to write on the compute stream.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        self.target.view_mut()
    }
}

impl<T> Drop for Staging<T> {
    fn drop(&mut self) {
        // Pinned memory must outlive the uploads that read it.
        let context = &self.gpu.context;
        context.park(self.gpu.copy().synchronize());
    }
}

impl<T> std::fmt::Debug for Staging<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Staging({:?})", self.target)
    }
}
