//! Steps whose data is already on the device.

use crate::contract::Goal;
use crate::error::Result;
use crate::metrics::{BackwardMetrics, BackwardOpts, StepMetrics};
use crate::trainer::MambaTrainer;
use mamba_cuda::{Gpu, View, ViewMut};

/// The device memory that a backbone's step reads and writes. Calls with host memory copy to the same places.
///
/// Write on [`Gpu::compute`], the stream that steps run on, or wait for other streams first.
#[derive(Debug)]
pub struct DeviceBuffers<'a> {
    /// The device and its streams.
    pub gpu: &'a Gpu,
    /// `[batch, seq_len, input_dim]`.
    pub input: ViewMut<'a, f32>,
    /// Packing mask `[batch, seq_len]`: 1 at the first token of a document, else 0. Zeros unless a mask was given last.
    pub reset: ViewMut<'a, u8>,
    /// Gradient of the temporal output, `[batch, seq_len, d_model]`.
    pub d_temporal: ViewMut<'a, f32>,
    /// Output of the last forward, `[batch, seq_len, d_model]`; the backward pass overwrites it.
    pub temporal: View<'a, f32>,
    /// Gradient of the input, `[batch, seq_len, input_dim]`, without the loss scale; where the trainer was built with it.
    pub input_gradient: Option<View<'a, f32>>,
}

/// Nothing goes through the host: a loss and a data source on the device meet the backbone there.
impl MambaTrainer {
    /// The memory that the `_on_device` calls read and write.
    ///
    /// # Errors
    /// [`TrainerError::NotAvailable`](crate::TrainerError::NotAvailable) on the CPU, those of the device.
    pub fn device_buffers(&mut self) -> Result<DeviceBuffers<'_>> {
        self.core.engine.device_buffers()
    }

    /// [`step`](Self::step) from the input, mask and upstream gradient that lie in [`device_buffers`](Self::device_buffers).
    ///
    /// # Errors
    /// As [`step`](Self::step), and [`TrainerError::NotAvailable`](crate::TrainerError::NotAvailable) on the CPU.
    pub fn step_on_device(&mut self) -> Result<StepMetrics> {
        self.device_buffers()?;
        self.core.step(None, Goal::Resident)
    }

    /// [`forward`](Self::forward) of the input that lies on the device; the output stays there. Waits for nothing.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and [`TrainerError::NotAvailable`](crate::TrainerError::NotAvailable) on the CPU.
    pub fn forward_on_device(&mut self) -> Result<()> {
        self.device_buffers()?;
        self.core.forward(None, None)
    }

    /// [`backward_step`](Self::backward_step) from the upstream gradient that lies on the device.
    ///
    /// # Errors
    /// As [`backward_step`](Self::backward_step), and
    /// [`TrainerError::NotAvailable`](crate::TrainerError::NotAvailable) on the CPU.
    pub fn backward_step_on_device(&mut self, opts: BackwardOpts) -> Result<BackwardMetrics> {
        self.device_buffers()?;
        Ok(self.core.micro_batch("backward_step_on_device", None, Goal::Resident, &opts, None)?.0)
    }
}
