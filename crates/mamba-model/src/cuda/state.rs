use super::forward::{Entry, Exit};
use crate::config::MambaConfig;
use crate::error::{ModelError, Result};
use crate::state::RecurrentState;
use mamba_cuda::{DeviceBuf, Gpu, View, ViewMut};

/// A [`RecurrentState`] on the device: what the next window starts from, and what the pending one started from.
#[derive(Debug)]
pub struct DeviceState {
    gpu: Gpu,
    /// `[n_layers, batch, d_inner, d_conv - 1]`.
    pub(super) conv: Pair,
    /// `[n_layers, batch, d_inner, d_state]`.
    pub(super) ssm: Pair,
}

/// The state now, and a copy from when the last window began: blocks read the copy and write the other, and the backward
/// pass reads the copy again.
#[derive(Debug)]
pub(super) struct Pair {
    pub now: DeviceBuf<f32>,
    pub entry: DeviceBuf<f32>,
}

impl Pair {
    fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        Ok(Self { now: DeviceBuf::zeros(gpu, len)?, entry: DeviceBuf::zeros(gpu, len)? })
    }

    /// The parts of one of `layers` layers; absent where they are empty.
    fn layer(&mut self, index: usize, layers: usize) -> Result<Option<(View<'_, f32>, ViewMut<'_, f32>)>> {
        let len = self.now.len() / layers;
        let range = index * len..(index + 1) * len;
        let parts = (self.entry.view().slice(range.clone())?, self.now.view_mut().slice(range)?);
        Ok((len > 0).then_some(parts))
    }

    fn enter(&mut self, gpu: &Gpu) -> Result<()> {
        Ok(self.entry.view_mut().copy_from(self.now.view(), gpu.compute())?)
    }
}

impl DeviceState {
    /// The empty state.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn new(gpu: &Gpu, config: &MambaConfig, batch: usize) -> Result<Self> {
        let (conv, ssm) = RecurrentState::lengths(config, batch);
        Ok(Self { gpu: gpu.clone(), conv: Pair::new(gpu, conv)?, ssm: Pair::new(gpu, ssm)? })
    }

    /// Starts a window.
    pub(super) fn enter(&mut self) -> Result<()> {
        self.conv.enter(&self.gpu)?;
        self.ssm.enter(&self.gpu)
    }

    /// Starts a window without a copy: the buffers change places. Captured work stays with the places that it saw.
    pub(super) fn swap(&mut self) {
        for Pair { now, entry } in [&mut self.conv, &mut self.ssm] {
            std::mem::swap(now, entry);
        }
    }

    /// What a layer starts from, and where it leaves what the next window starts from.
    pub(super) fn layer(&mut self, index: usize, layers: usize) -> Result<(Entry<'_>, Exit<'_>)> {
        let (entry_conv, exit_conv) = self.conv.layer(index, layers)?.unzip();
        let (entry_ssm, exit_ssm) = self.ssm.layer(index, layers)?.unzip();
        Ok((Entry { conv: entry_conv, ssm: entry_ssm }, Exit { conv: exit_conv, ssm: exit_ssm }))
    }

    /// The state on the host; waits.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn read(&self) -> Result<RecurrentState> {
        let stream = self.gpu.compute();
        Ok(RecurrentState { conv: self.conv.now.to_host(stream)?, ssm: self.ssm.now.to_host(stream)? })
    }

    /// Replaces the state; `None`: the empty one.
    ///
    /// # Errors
    /// [`ModelError::Length`], those of the driver.
    pub fn write(&mut self, state: Option<&RecurrentState>) -> Result<()> {
        let stream = self.gpu.compute();
        let Some(RecurrentState { conv, ssm }) = state else {
            self.conv.now.view_mut().fill_bytes(0, stream)?;
            return Ok(self.ssm.now.view_mut().fill_bytes(0, stream)?);
        };
        let parts = [
            ("state.conv", conv.len(), self.conv.now.len(), "[n_layers, batch, d_inner, d_conv - 1]"),
            ("state.ssm", ssm.len(), self.ssm.now.len(), "[n_layers, batch, d_inner, d_state]"),
        ];
        for (name, got, expected, layout) in parts {
            if got != expected {
                return Err(ModelError::Length { name, got, expected, layout });
            }
        }
        self.conv.now.view_mut().write(conv, stream)?;
        Ok(self.ssm.now.view_mut().write(ssm, stream)?)
    }
}
