//! Inference of a language model, token by token, on the device of one's choice.

use crate::engine;
use crate::error::Result;
use crate::session::{Device, GemmMode, WeightDtype};
use half::{bf16, f16};
use mamba_kernels::Elem;
use mamba_model::cpu::{CpuDecoder, CpuOptions};
use mamba_model::cuda::CudaDecoder;
use mamba_model::{MambaWeights, RecurrentState};

/// A language model that is fed token by token, for several sequences side by side.
///
/// ```
/// use mamba_trainer::{Decoder, Device, LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, WeightDtype};
///
/// # fn main() -> mamba_trainer::Result<()> {
/// let config = ModelConfig::language_model(MambaConfig::new(16, 2), LmHeadConfig::new(5));
/// let weights = MambaWeights::init(&config, 7)?;
/// let mut decoder = Decoder::new(&weights, 1, Device::Cpu, WeightDtype::F32)?;
/// decoder.prefill(&[1, 2, 3])?; // a prompt
/// let logits = decoder.step(&[4])?; // one more token
/// assert_eq!(logits.len(), 5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Decoder {
    decode: Box<dyn Decode>,
}

/// What a device's decoder can do.
trait Decode: Send + std::fmt::Debug {
    fn prefill(&mut self, ids: &[u32]) -> mamba_model::Result<&[f32]>;
    fn step(&mut self, ids: &[u32]) -> mamba_model::Result<&[f32]>;
    fn state(&self) -> mamba_model::Result<RecurrentState>;
    fn load_state(&mut self, state: &RecurrentState) -> mamba_model::Result<()>;
    fn reset(&mut self) -> mamba_model::Result<()>;
}

impl Decoder {
    /// A decoder for `batch` sequences with a copy of the weights, at the start of a sequence. The CPU runs in f32.
    ///
    /// # Errors
    /// [`TrainerError::NotAvailable`](crate::TrainerError::NotAvailable) for a device or precision that this machine
    /// does not have; [`TrainerError::Model`](crate::TrainerError::Model) without a head or for an empty batch; those
    /// of the device.
    pub fn new(weights: &MambaWeights, batch: usize, device: Device, dtype: WeightDtype) -> Result<Self> {
        Self::with_threads(weights, batch, device, dtype, None)
    }

    /// [`Decoder::new`] with a number of threads for the CPU; the result does not depend on it.
    ///
    /// # Errors
    /// As [`Decoder::new`].
    pub fn with_threads(
        weights: &MambaWeights,
        batch: usize,
        device: Device,
        dtype: WeightDtype,
        threads: Option<usize>,
    ) -> Result<Self> {
        engine::check_available(device, dtype, GemmMode::Deterministic)?;
        let decode: Box<dyn Decode> = match (device, dtype) {
            (Device::Cpu, _) => {
                Box::new(CpuDecoder::new(weights, batch, &CpuOptions { threads, recompute: false })?)
            }
            (Device::Cuda(n), WeightDtype::F32 | WeightDtype::Tf32) => {
                Box::new(on_gpu::<f32>(weights, batch, n, dtype)?)
            }
            (Device::Cuda(n), WeightDtype::Bf16) => Box::new(on_gpu::<bf16>(weights, batch, n, dtype)?),
            (Device::Cuda(n), WeightDtype::F16) => Box::new(on_gpu::<f16>(weights, batch, n, dtype)?),
        };
        Ok(Self { decode })
    }

    /// Feeds `[batch, n]` tokens, n ≥ 1; gives the logits after the last, `[batch, rows]`.
    ///
    /// # Errors
    /// [`TrainerError::Model`](crate::TrainerError::Model) where the length is no multiple of the batch or a token is
    /// not in the vocabulary: the state stays. Those of the device.
    pub fn prefill(&mut self, ids: &[u32]) -> Result<&[f32]> {
        Ok(self.decode.prefill(ids)?)
    }

    /// Feeds one token a sequence, `[batch]`; gives the logits after it, `[batch, rows]`.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn step(&mut self, ids: &[u32]) -> Result<&[f32]> {
        Ok(self.decode.step(ids)?)
    }

    /// What is carried from token to token.
    ///
    /// # Errors
    /// Those of the device.
    pub fn state(&self) -> Result<RecurrentState> {
        Ok(self.decode.state()?)
    }

    /// Goes on from another state.
    ///
    /// # Errors
    /// [`TrainerError::Model`](crate::TrainerError::Model) for other lengths; the state stays.
    pub fn load_state(&mut self, state: &RecurrentState) -> Result<()> {
        Ok(self.decode.load_state(state)?)
    }

    /// Back to the start of a sequence.
    ///
    /// # Errors
    /// Those of the device.
    pub fn reset(&mut self) -> Result<()> {
        Ok(self.decode.reset()?)
    }
}

fn on_gpu<T: Elem>(
    weights: &MambaWeights,
    batch: usize,
    ordinal: usize,
    dtype: WeightDtype,
) -> Result<CudaDecoder<T>> {
    let kernels = engine::cuda::kernels_of(ordinal)?;
    let arithmetic = engine::cuda::arithmetic(GemmMode::Deterministic, dtype);
    Ok(CudaDecoder::new(&kernels, weights, batch, arithmetic)?)
}

impl Decode for CpuDecoder {
    fn prefill(&mut self, ids: &[u32]) -> mamba_model::Result<&[f32]> {
        Self::prefill(self, ids)
    }
    fn step(&mut self, ids: &[u32]) -> mamba_model::Result<&[f32]> {
        Self::step(self, ids)
    }
    fn state(&self) -> mamba_model::Result<RecurrentState> {
        Ok(Self::state(self).clone())
    }
    fn load_state(&mut self, state: &RecurrentState) -> mamba_model::Result<()> {
        Self::load_state(self, state)
    }
    fn reset(&mut self) -> mamba_model::Result<()> {
        Self::reset(self);
        Ok(())
    }
}

impl<T: Elem> Decode for CudaDecoder<T> {
    fn prefill(&mut self, ids: &[u32]) -> mamba_model::Result<&[f32]> {
        Self::prefill(self, ids)
    }
    fn step(&mut self, ids: &[u32]) -> mamba_model::Result<&[f32]> {
        Self::step(self, ids)
    }
    fn state(&self) -> mamba_model::Result<RecurrentState> {
        Self::state(self)
    }
    fn load_state(&mut self, state: &RecurrentState) -> mamba_model::Result<()> {
        Self::load_state(self, state)
    }
    fn reset(&mut self) -> mamba_model::Result<()> {
        Self::reset(self)
    }
}
