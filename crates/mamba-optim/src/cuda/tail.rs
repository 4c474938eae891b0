use super::inputs;
use crate::adamw::AdamWState;
use crate::error::OptimError;
use crate::groups::{ControlSpans, ParamGroups};
use crate::norms::{NormWindow, NormWindowConfig};
use crate::scalars::StepScalars;
use crate::scaler::{LossScaler, ScalerState};
use mamba_cuda::{DeviceBuf, Gpu, Staging, View, ViewMut};
use mamba_kernels::optim::{
    AdamW, Decide, GradSums, GroupTable, Refresh, SpanClip, SpanPiece, SpanSums, TailInputs, TailState,
    blocks, pieces,
};
use mamba_kernels::{Elem, Kernel, KernelError, Kernels, Launch, Result, Val};
use std::marker::PhantomData;
use std::ops::Range;

/// The caller's arenas, of the length that the [`DeviceTail`] was made for.
#[derive(Debug)]
pub struct DeviceArenas<'a, W: Elem> {
    /// f32 parameters.
    pub params: ViewMut<'a, f32>,
    /// Gradients times the loss scale. Written by the control clip alone.
    pub grads: ViewMut<'a, f32>,
    /// Half-precision copy of the parameters; absent: none is kept.
    pub shadow: Option<ViewMut<'a, W>>,
}

/// The tail of a step on a GPU, with everything that it keeps from step to step.
#[derive(Debug)]
pub struct DeviceTail {
    kernels: Kernels,
    groups: ParamGroups,
    a_log: Vec<Range<usize>>,
    table: GroupTable,
    words: DeviceBuf<u32>,
    m: DeviceBuf<f32>,
    v: DeviceBuf<f32>,
    neg_a: DeviceBuf<f32>,
    control: Control,
    partial: DeviceBuf<f64>,
    bad: DeviceBuf<u32>,
    inputs: Staging<TailInputs>,
    state: DeviceBuf<TailState>,
    /// Ring of norms; where it begins and ends is in the state.
    norms: DeviceBuf<f64>,
    window: NormWindowConfig,
    loss_scale: DeviceBuf<f32>,
    scaler: LossScaler,
}

/// The control clip's spans and scratch.
#[derive(Debug)]
struct Control {
    count: usize,
    pieces: DeviceBuf<SpanPiece>,
    partial: DeviceBuf<f64>,
    norm: DeviceBuf<f64>,
}

impl Control {
    fn new(gpu: &Gpu, spans: &ControlSpans) -> Result<Self> {
        let pieces = pieces(spans.spans().iter().map(|s| (s.start, s.width, s.stride, s.rows)));
        Ok(Self {
            count: pieces.len(),
            pieces: DeviceBuf::from_host(gpu, &pieces)?,
            partial: DeviceBuf::zeros(gpu, pieces.len())?,
            norm: DeviceBuf::zeros(gpu, 1)?,
        })
    }
}

fn group_table(groups: &ParamGroups, a_log: &[Range<usize>]) -> Result<GroupTable> {
    let all = !groups.reference_no_decay();
    let decay = groups.spans().iter().filter(|s| all || s.decay).map(|s| s.range.clone());
    GroupTable::new(groups.arena_len(), decay, a_log.iter().cloned())
}

impl DeviceTail {
    /// Zero moments, step 0. Every tensor of `groups` must start at a multiple of
    /// [`GROUP`](mamba_kernels::optim::GROUP) elements, and the gaps between them must hold zeros in every arena: they
    /// take part in the update, where zeros stay zeros. `a_log`: the ranges whose A the update refreshes. `norms`: the
    /// norms to begin with, and how they are used.
    ///
    /// # Errors
    /// [`KernelError::Size`] for a range that starts elsewhere, those of the device.
    pub fn new(
        kernels: &Kernels,
        groups: ParamGroups,
        control: &ControlSpans,
        a_log: Vec<Range<usize>>,
        scaler: LossScaler,
        norms: &NormWindow,
    ) -> Result<Self> {
        let (gpu, len) = (kernels.gpu(), groups.arena_len());
        let table = group_table(&groups, &a_log)?;
        let (window, norms) = (*norms.config(), norms.norms().collect::<Vec<_>>());
        let state = TailState { norms: norms.len() as u32, ..initial_state(&scaler) };
        Ok(Self {
            kernels: kernels.clone(),
            words: DeviceBuf::from_host(gpu, table.words())?,
            m: DeviceBuf::zeros(gpu, len)?,
            v: DeviceBuf::zeros(gpu, len)?,
            neg_a: DeviceBuf::zeros(gpu, table.neg_a_len())?,
            control: Control::new(gpu, control)?,
            partial: DeviceBuf::zeros(gpu, blocks(len))?,
            bad: DeviceBuf::zeros(gpu, blocks(len))?,
            inputs: Staging::new(gpu, 1)?,
            loss_scale: DeviceBuf::from_host(gpu, &[state.scale])?,
            state: DeviceBuf::from_host(gpu, &[state])?,
            norms: DeviceBuf::from_host(gpu, &ring(norms, window.window))?,
            window,
            table,
            groups,
            a_log,
            scaler,
        })
    }

    /// Takes over the numbers of the next step. Of the scalars, those that the device keeps itself (step, bias
    /// corrections, scale) are not read. `grad_factor`: factor of the gradient beside the loss scale.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn stage(&mut self, scalars: &StepScalars, grad_factor: f64) -> Result<()> {
        let inputs = inputs(scalars, &self.scaler, &self.window, grad_factor);
        Ok(self.inputs.stage(&[inputs])?)
    }

    /// Moves the staged numbers to where the step reads them; not part of a captured step.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn commit(&mut self) -> Result<()> {
        Ok(self.inputs.commit()?)
    }

    /// Enqueues the tail.
    ///
    /// # Errors
    /// [`KernelError::Length`] for arenas of another length, those of the driver.
    pub fn enqueue<W: Elem>(&mut self, arenas: DeviceArenas<'_, W>) -> Result<()> {
        let DeviceArenas { params, mut grads, shadow } = arenas;
        let len = self.groups.arena_len();
        self.clip_control(&mut grads)?;
        GradSums {
            grads: grads.as_view(),
            inputs: self.inputs.view(),
            state: self.state.view(),
            partial: self.partial.view_mut(),
            bad: self.bad.view_mut(),
            len: Val(len as i64),
            marker: PhantomData,
        }
        .launch(&self.kernels)?;
        Decide {
            partial: self.partial.view(),
            bad: self.bad.view(),
            control_norm: (self.control.count > 0).then(|| self.control.norm.view()),
            inputs: self.inputs.view(),
            state: self.state.view_mut(),
            norms: self.norms.view_mut(),
            loss_scale: self.loss_scale.view_mut(),
            blocks: Val(blocks(len) as i64),
            capacity: Val(self.window.window as u32),
            len,
            marker: PhantomData,
        }
        .launch(&self.kernels)?;
        let neg_a_len = self.table.neg_a_len();
        AdamW {
            params,
            grads: grads.as_view(),
            m: self.m.view_mut(),
            v: self.v.view_mut(),
            shadow,
            neg_a: (neg_a_len > 0).then(|| self.neg_a.view_mut()),
            groups: self.words.view(),
            inputs: self.inputs.view(),
            state: self.state.view(),
            len: Val(len as i64),
            neg_a_len,
            marker: PhantomData,
        }
        .launch(&self.kernels)
    }

    fn clip_control(&mut self, grads: &mut ViewMut<'_, f32>) -> Result<()> {
        let Control { count, pieces, partial, norm } = &mut self.control;
        if *count == 0 {
            return Ok(());
        }
        let (count, marker) = (Val(*count as i32), PhantomData);
        SpanSums {
            grads: grads.as_view(),
            pieces: pieces.view(),
            inputs: self.inputs.view(),
            state: self.state.view(),
            partial: partial.view_mut(),
            count,
            marker,
        }
        .launch(&self.kernels)?;
        SpanClip {
            grads: grads.reborrow(),
            pieces: pieces.view(),
            inputs: self.inputs.view(),
            partial: partial.view(),
            norm: norm.view_mut(),
            count,
            marker,
        }
        .launch(&self.kernels)
    }

    /// Enqueues the shadow and A of parameters that came from elsewhere.
    ///
    /// # Errors
    /// As [`DeviceTail::enqueue`].
    pub fn refresh<W: Elem>(&mut self, params: View<'_, f32>, shadow: Option<ViewMut<'_, W>>) -> Result<()> {
        let neg_a_len = self.table.neg_a_len();
        Refresh {
            params,
            shadow,
            neg_a: (neg_a_len > 0).then(|| self.neg_a.view_mut()),
            groups: self.words.view(),
            len: Val(self.groups.arena_len() as i64),
            neg_a_len,
            marker: PhantomData,
        }
        .launch(&self.kernels)
    }

    /// All A, tensor after tensor: see [`DeviceTail::neg_a_offset`].
    pub fn neg_a(&self) -> View<'_, f32> {
        self.neg_a.view()
    }

    /// Where A of the `index`-th `a_log` range starts.
    pub fn neg_a_offset(&self, index: usize) -> usize {
        let lens: Vec<usize> = self.a_log.iter().map(Range::len).collect();
        GroupTable::neg_a_offset(&lens, index)
    }

    /// The loss scale, one value on the device.
    pub fn loss_scale(&self) -> View<'_, f32> {
        self.loss_scale.view()
    }

    /// What was decided last, one value on the device.
    pub fn state(&self) -> View<'_, TailState> {
        self.state.view()
    }

    /// The same on the host; waits.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn read_state(&self) -> Result<TailState> {
        let mut state = [initial_state(&self.scaler)];
        self.state.view().read(&mut state, self.kernels.gpu().compute())?;
        Ok(state[0])
    }

    /// Replaces the state, the scale included.
    ///
    /// # Errors
    /// [`KernelError::Size`] for a ring of norms that does not fit, those of the driver.
    pub fn write_state(&mut self, state: &TailState) -> Result<()> {
        let capacity = self.window.window as u64;
        let (norms, oldest) = (u64::from(state.norms), u64::from(state.oldest_norm));
        if norms > capacity || oldest >= capacity {
            let (kernel, argument, expected) = (Decide::NAME, "norms", "a ring as long as the window");
            return Err(KernelError::Size { kernel, argument, got: norms.max(oldest), expected });
        }
        let stream = self.kernels.gpu().compute();
        self.state.view_mut().write(&[*state], stream)?;
        Ok(self.loss_scale.view_mut().write(&[state.scale], stream)?)
    }

    /// Moments and step count on the host; waits.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn adamw_state(&self) -> Result<AdamWState> {
        let stream = self.kernels.gpu().compute();
        let (m, v) = (self.m.to_host(stream)?, self.v.to_host(stream)?);
        Ok(AdamWState { m, v, step: self.read_state()?.step })
    }

    /// First moments.
    pub fn m(&mut self) -> &mut DeviceBuf<f32> {
        &mut self.m
    }

    /// Second moments.
    pub fn v(&mut self) -> &mut DeviceBuf<f32> {
        &mut self.v
    }

    /// The scaler's state, `None` where there is none; waits.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn scaler_state(&self) -> Result<Option<ScalerState>> {
        if !self.scaler.is_enabled() {
            return Ok(None);
        }
        let TailState { scale, growth_tracker, .. } = self.read_state()?;
        Ok(Some(ScalerState { scale, growth_tracker }))
    }

    /// Checks a state for [`DeviceTail::set_scaler_state`].
    ///
    /// # Errors
    /// Those of [`LossScaler::restore`].
    pub fn check_scaler_state(&self, saved: Option<ScalerState>) -> std::result::Result<(), OptimError> {
        self.scaler.clone().restore(saved)
    }

    /// Puts back a state that was checked.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn set_scaler_state(&mut self, saved: Option<ScalerState>) -> Result<()> {
        let Some(ScalerState { scale, growth_tracker }) = saved else { return Ok(()) };
        let state = self.read_state()?;
        self.write_state(&TailState { scale, growth_tracker, ..state })
    }

    /// Norms of the last applied steps, oldest first; waits.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn norms(&self) -> Result<Vec<f64>> {
        let state = self.read_state()?;
        let mut ring = self.norms.to_host(self.kernels.gpu().compute())?;
        ring.rotate_left(state.oldest_norm as usize);
        ring.truncate(state.norms as usize);
        Ok(ring)
    }

    /// Puts back norms that [`NormWindowConfig::check_norms`] let through, oldest first.
    ///
    /// # Errors
    /// As [`DeviceTail::write_state`].
    pub fn set_norms(&mut self, norms: &[f64]) -> Result<()> {
        let state = self.read_state()?;
        self.write_state(&TailState { norms: norms.len() as u32, oldest_norm: 0, ..state })?;
        let ring = ring(norms.to_vec(), self.window.window);
        Ok(self.norms.view_mut().write(&ring, self.kernels.gpu().compute())?)
    }

    /// The scaler's settings.
    pub fn scaler(&self) -> &LossScaler {
        &self.scaler
    }

    /// Switches the no-decay groups, see [`ParamGroups::set_reference_no_decay`].
    ///
    /// # Errors
    /// Those of the driver.
    pub fn set_reference_no_decay(&mut self, on: bool) -> Result<()> {
        let mut groups = self.groups.clone();
        groups.set_reference_no_decay(on);
        let table = group_table(&groups, &self.a_log)?;
        self.words.view_mut().write(table.words(), self.kernels.gpu().compute())?;
        (self.groups, self.table) = (groups, table);
        Ok(())
    }
}

/// The norms at the front of a ring.
fn ring(mut norms: Vec<f64>, capacity: usize) -> Vec<f64> {
    norms.resize(capacity, 0.0);
    norms
}

/// Step 0 at the scaler's scale.
fn initial_state(scaler: &LossScaler) -> TailState {
    let growth_tracker = scaler.state().map_or(0, |s| s.growth_tracker);
    TailState { growth_tracker, ..TailState::new(scaler.scale()) }
}
