use super::sizes::Sizes;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::input::{ModelInput, check_len};
use bytemuck::Pod;
use mamba_cuda::{Gpu, Staging, View, ViewMut};

/// A window's input on the device.
#[derive(Debug, Clone, Copy)]
pub(super) enum Input<'a> {
    /// `[batch, seq_len, input_width]`.
    Dense(View<'a, f32>),
    /// `[batch, seq_len]`.
    Ids(View<'a, u32>),
}

impl<'a> Input<'a> {
    pub fn dense(&self) -> Result<View<'a, f32>> {
        match self {
            Self::Dense(view) => Ok(*view),
            Self::Ids(_) => Err(absent("a dense input")),
        }
    }

    pub fn ids(&self) -> Result<View<'a, u32>> {
        match self {
            Self::Ids(view) => Ok(*view),
            Self::Dense(_) => Err(absent("a token input")),
        }
    }
}

/// The fixed buffers of a backbone's step.
#[derive(Debug)]
pub struct Resident<'a> {
    /// `[batch, seq_len, input_width]`.
    pub input: ViewMut<'a, f32>,
    /// `[batch, seq_len]`, 1 at the first token of a document.
    pub reset: ViewMut<'a, u8>,
    /// `[batch, seq_len, d_model]`.
    pub upstream: ViewMut<'a, f32>,
}

/// What a step reads from the host. `stage_*` lets go of the caller's memory at once; [`DeviceBatch::commit`] moves what
/// was staged to the fixed buffers that kernels and captured steps read.
#[derive(Debug)]
pub struct DeviceBatch {
    tokens: usize,
    dense: Option<Staging<f32>>,
    ids: Option<Staging<u32>>,
    reset: Defaulted<u8>,
    upstream: Option<Staging<f32>>,
    targets: Option<Staging<i32>>,
    weights: Option<Defaulted<f32>>,
}

/// Data that may be left out, in which case every element has one value.
#[derive(Debug)]
struct Defaulted<T> {
    data: Staging<T>,
    value: T,
    /// Whether the newest data is the default.
    is_default: bool,
}

impl<T: Pod> Defaulted<T> {
    fn new(gpu: &Gpu, len: usize, value: T) -> Result<Self> {
        let mut data = Staging::new(gpu, len)?;
        data.stage(&vec![value; len])?;
        data.commit()?;
        Ok(Self { data, value, is_default: true })
    }

    fn stage(&mut self, data: Option<&[T]>, len: usize) -> Result<()> {
        match data {
            Some(data) => self.data.stage(data)?,
            None if self.is_default => return Ok(()),
            None => self.data.stage(&vec![self.value; len])?,
        }
        self.is_default = data.is_none();
        Ok(())
    }
}

impl DeviceBatch {
    /// Buffers for windows of `batch × seq_len` tokens.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn new(gpu: &Gpu, config: &ModelConfig, batch: usize, seq_len: usize) -> Result<Self> {
        let sizes = Sizes::new(config, batch, seq_len)?;
        let (tokens, lm) = (sizes.tokens, config.lm.is_some());
        let floats = |len| -> Result<Option<Staging<f32>>> { Ok(Some(Staging::new(gpu, len)?)) };
        Ok(Self {
            tokens,
            dense: if lm { None } else { floats(tokens * sizes.input_width)? },
            upstream: if lm { None } else { floats(tokens * sizes.d_model)? },
            ids: if lm { Some(Staging::new(gpu, tokens)?) } else { None },
            targets: if lm { Some(Staging::new(gpu, tokens)?) } else { None },
            weights: if lm { Some(Defaulted::new(gpu, tokens, 1.0)?) } else { None },
            reset: Defaulted::new(gpu, tokens, 0)?,
        })
    }

    /// The window's input and its packing mask `[batch, seq_len]` (absent: all zeros). Values were checked before.
    ///
    /// # Errors
    /// [`ModelError::Length`](crate::ModelError::Length), those of the driver.
    pub fn stage_input(&mut self, input: ModelInput<'_>, reset: Option<&[u8]>) -> Result<()> {
        if let Some(reset) = reset {
            check_len("reset", reset.len(), self.tokens, "[batch, seq_len]")?;
        }
        match (input, &mut self.dense, &mut self.ids) {
            (ModelInput::Dense(x), Some(dense), _) => dense.stage(x)?,
            (ModelInput::Tokens(ids), _, Some(to)) => to.stage(ids)?,
            _ => check_len("input", 0, self.tokens, "the kind of input that the model takes")?,
        }
        self.reset.stage(reset, self.tokens)
    }

    /// Gradient of the temporal output, `[batch, seq_len, d_model]`.
    ///
    /// # Errors
    /// As [`DeviceBatch::stage_input`].
    pub fn stage_upstream(&mut self, d_temporal: &[f32]) -> Result<()> {
        match &mut self.upstream {
            Some(upstream) => Ok(upstream.stage(d_temporal)?),
            None => check_len("d_temporal", d_temporal.len(), 0, "none in a language model"),
        }
    }

    /// Targets and token weights `[batch, seq_len]` (absent: all ones).
    ///
    /// # Errors
    /// As [`DeviceBatch::stage_input`].
    pub fn stage_targets(&mut self, targets: &[i32], weights: Option<&[f32]>) -> Result<()> {
        let (Some(to), Some(all)) = (&mut self.targets, &mut self.weights) else {
            return check_len("targets", targets.len(), 0, "none in a bare backbone");
        };
        to.stage(targets)?;
        all.stage(weights, self.tokens)
    }

    /// Moves everything staged to the fixed buffers; not part of a captured step.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn commit(&mut self) -> Result<()> {
        self.reset.data.commit()?;
        if let Some(weights) = &mut self.weights {
            weights.data.commit()?;
        }
        for staging in [&mut self.dense, &mut self.upstream].into_iter().flatten() {
            staging.commit()?;
        }
        if let (Some(ids), Some(targets)) = (&mut self.ids, &mut self.targets) {
            ids.commit()?;
            targets.commit()?;
        }
        Ok(())
    }

    /// The fixed buffers themselves, to be written on the compute stream.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`](crate::ModelError::Unsupported) for a language model.
    pub fn resident(&mut self) -> Result<Resident<'_>> {
        let Self { dense, upstream, reset, .. } = self;
        let (Some(dense), Some(upstream)) = (dense, upstream) else { return Err(absent("a dense input")) };
        // What is written is not known: a window without a mask clears it again.
        reset.is_default = false;
        Ok(Resident { input: dense.view_mut(), reset: reset.data.view_mut(), upstream: upstream.view_mut() })
    }

    pub(super) fn input(&self) -> Result<Input<'_>> {
        match (&self.dense, &self.ids) {
            (Some(dense), _) => Ok(Input::Dense(dense.view())),
            (None, Some(ids)) => Ok(Input::Ids(ids.view())),
            (None, None) => Err(absent("input")),
        }
    }

    pub(super) fn upstream(&self) -> Result<View<'_, f32>> {
        self.upstream.as_ref().map(Staging::view).ok_or_else(|| absent("d_temporal"))
    }

    pub(super) fn targets(&self) -> Result<View<'_, i32>> {
        self.targets.as_ref().map(Staging::view).ok_or_else(|| absent("targets"))
    }

    pub(super) fn weights(&self) -> Result<View<'_, f32>> {
        self.weights.as_ref().map(|w| w.data.view()).ok_or_else(|| absent("weights"))
    }

    pub(super) fn reset(&self) -> View<'_, u8> {
        self.reset.data.view()
    }
}

fn absent(name: &'static str) -> crate::ModelError {
    crate::ModelError::Unsupported { call: name, needs: "the other kind of model", has: "none of it" }
}
