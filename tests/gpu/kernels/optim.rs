//! The tail of a step on the device against the one on the host, which has its own tests: bit for bit.

use crate::support::{Test, draws, poisoned};
use half::{bf16, f16};
use mamba_cuda::{CudaError, DeviceBuf, Gpu};
use mamba_kernels::optim::{
    AdamW, Decide, GradSums, GroupTable, Refresh, SpanClip, SpanPiece, SpanSums, TailInputs, TailOutcome,
    TailState, blocks, pieces,
};
use mamba_kernels::{Elem, KernelError, Kernels, Launch, Val};
use mamba_optim::{
    AdamWConfig, AdamWState, ControlSpans, LossScaler, NonFinite, NormWindow, NormWindowConfig, OptimError,
    ParamGroups, ParamSpan, ScalerConfig, Schedule, ScheduleKind, StepOptions, StepOutcome, StepScalars,
    StridedSpan, TailArenas, run_tail,
};
use std::marker::PhantomData;
use std::ops::Range;

/// (name, test) of the optimizer's tail.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for len in [1usize, 63, 64, 130, 1000, 16_384, 50_001, 300_007] {
        let name = |kind: &str| format!("optim/{kind}/{len}");
        all.push((name("f32"), Box::new(move |k| steps::<f32>(k, len, false))));
        all.push((name("bf16"), Box::new(move |k| steps::<bf16>(k, len, true))));
        all.push((name("f16"), Box::new(move |k| steps::<f16>(k, len, true))));
        all.push((name("refresh"), Box::new(move |k| refresh(k, len))));
    }
    all.push(("optim/control_clip".to_owned(), Box::new(control_clip)));
    all.push(("optim/skips".to_owned(), Box::new(skips)));
    for window in [2usize, 31, 33, 128] {
        all.push((format!("optim/outliers/{window}"), Box::new(move |k| outliers(k, window))));
    }
    all.push(("optim/propagates".to_owned(), Box::new(propagates)));
    all.push(("optim/scaler".to_owned(), Box::new(scaler)));
    all.push(("optim/two_runs_agree".to_owned(), Box::new(two_runs)));
    all
}

fn text(e: KernelError) -> String {
    e.to_string()
}

fn up(e: CudaError) -> String {
    e.to_string()
}

fn optim(e: OptimError) -> String {
    e.to_string()
}

/// Tensors of an arena, at multiples of 64: (range, decays, is A_log).
fn tensors(len: usize) -> Vec<(Range<usize>, bool, bool)> {
    let cut = (len / 3).next_multiple_of(64).min(len);
    let next = (2 * len / 3).next_multiple_of(64).min(len);
    let all = [(0..cut, true, false), (cut..next, false, true), (next..len, true, true)];
    // A gap behind the first tensor, where it has room for one.
    let shorten = |(r, d, a): (Range<usize>, bool, bool)| {
        let end = if r.len() > 100 && !a { r.end - 3 } else { r.end };
        (r.start..end, d, a)
    };
    all.into_iter().filter(|(r, ..)| !r.is_empty()).map(shorten).collect()
}

/// With zeros in the gaps between tensors, as an arena keeps them.
fn padded(mut x: Vec<f32>) -> Vec<f32> {
    let tensors = tensors(x.len());
    for (i, v) in x.iter_mut().enumerate() {
        if !tensors.iter().any(|(range, ..)| range.contains(&i)) {
            *v = 0.0;
        }
    }
    x
}

/// The run on the host.
struct Host {
    params: Vec<f32>,
    state: AdamWState,
    norms: NormWindow,
    groups: ParamGroups,
    control: ControlSpans,
    scaler: LossScaler,
    config: AdamWConfig,
    schedule: Schedule,
}

impl Host {
    fn new(len: usize, control: Vec<StridedSpan>, scaler: LossScaler) -> Result<Self, String> {
        let spans = tensors(len).into_iter().enumerate();
        let spans = spans.map(|(i, (r, decay, _))| ParamSpan::new(format!("t{i}"), r, decay)).collect();
        let config = AdamWConfig::default().with_lr(0.03).and_then(|c| c.with_weight_decay(0.1));
        Ok(Self {
            params: padded(draws("params", len)),
            state: AdamWState::new(len),
            norms: NormWindow::default(),
            groups: ParamGroups::new(len, spans).map_err(optim)?,
            control: ControlSpans::new(len, control).map_err(optim)?,
            scaler,
            config: config.map_err(optim)?,
            schedule: Schedule::new(ScheduleKind::LinearWarmup { warmup: 4 }).map_err(optim)?,
        })
    }

    fn scalars(&self, options: &StepOptions, factor: f64) -> Result<StepScalars, String> {
        StepScalars::new(&self.config, &self.schedule, self.state.step, &self.scaler, options)
            .and_then(|s| s.with_grad_factor(factor))
            .map_err(optim)
    }

    fn step(&mut self, grads: &mut [f32], scalars: &StepScalars) -> Result<StepOutcome, OptimError> {
        let Self { params, state, norms, groups, control, scaler, .. } = self;
        run_tail(TailArenas { params, grads, state, norms }, groups, control, scaler, scalars, |_| ())
    }
}

/// What the device reads for `scalars`.
fn inputs(scalars: &StepScalars, host: &Host, grad_factor: f64) -> TailInputs {
    let config = host.scaler.config().copied().unwrap_or_default();
    let window = host.norms.config();
    TailInputs {
        beta1_exact: scalars.beta1_exact,
        beta2_exact: scalars.beta2_exact,
        clip_max: scalars.clip_max,
        control_clip_max: scalars.control_clip_max,
        skip_above: scalars.skip_above,
        skip_z_score: scalars.skip_z_score,
        deviation_floor: window.relative_floor,
        grad_factor,
        growth_factor: config.growth_factor,
        backoff_factor: config.backoff_factor,
        lr: scalars.lr,
        decay: scalars.decay,
        beta1: scalars.beta1,
        one_minus_beta1: scalars.one_minus_beta1,
        beta2: scalars.beta2,
        one_minus_beta2: scalars.one_minus_beta2,
        eps: scalars.eps,
        min_scale: config.min_scale.unwrap_or(0.0),
        max_scale: config.max_scale.unwrap_or(f32::INFINITY),
        growth_interval: config.growth_interval,
        min_norms: window.min_samples as u32,
        flags: scalars.flags,
    }
}

/// The run on the device.
struct Device<'k, W: Elem> {
    kernels: &'k Kernels,
    len: usize,
    table: GroupTable,
    params: DeviceBuf<f32>,
    grads: DeviceBuf<f32>,
    m: DeviceBuf<f32>,
    v: DeviceBuf<f32>,
    shadow: Option<DeviceBuf<W>>,
    neg_a: DeviceBuf<f32>,
    groups: DeviceBuf<u32>,
    state: DeviceBuf<TailState>,
    norms: DeviceBuf<f64>,
    loss_scale: DeviceBuf<f32>,
    pieces: DeviceBuf<SpanPiece>,
    count: usize,
}

impl<'k, W: Elem> Device<'k, W> {
    fn new(kernels: &'k Kernels, host: &Host, shadowed: bool) -> Result<Self, String> {
        let (gpu, len) = (kernels.gpu(), host.params.len());
        let ranges = tensors(len);
        let decay = ranges.iter().filter(|t| t.1).map(|t| t.0.clone());
        let a_log = ranges.iter().filter(|t| t.2).map(|t| t.0.clone());
        let table = GroupTable::new(len, decay, a_log).map_err(text)?;
        let spans = host.control.spans().iter().map(|s| (s.start, s.width, s.stride, s.rows));
        let pieces = pieces(spans);
        let state = TailState::new(host.scaler.scale());
        Ok(Self {
            kernels,
            len,
            params: DeviceBuf::from_host(gpu, &host.params).map_err(up)?,
            grads: DeviceBuf::zeros(gpu, len).map_err(up)?,
            m: DeviceBuf::zeros(gpu, len).map_err(up)?,
            v: DeviceBuf::zeros(gpu, len).map_err(up)?,
            shadow: if shadowed { Some(poisoned(gpu, len).map_err(text)?) } else { None },
            neg_a: poisoned(gpu, table.neg_a_len()).map_err(text)?,
            groups: DeviceBuf::from_host(gpu, table.words()).map_err(up)?,
            state: DeviceBuf::from_host(gpu, &[state]).map_err(up)?,
            norms: DeviceBuf::from_host(gpu, &vec![f64::NAN; host.norms.config().window]).map_err(up)?,
            loss_scale: poisoned(gpu, 1).map_err(text)?,
            count: pieces.len(),
            pieces: DeviceBuf::from_host(gpu, &pieces).map_err(up)?,
            table,
        })
    }

    fn gpu(&self) -> &'k Gpu {
        self.kernels.gpu()
    }

    fn step(&mut self, grads: &[f32], inputs: &TailInputs) -> Result<TailState, String> {
        let gpu = self.gpu();
        let inputs = DeviceBuf::from_host(gpu, &[*inputs]).map_err(up)?;
        self.grads.view_mut().write(grads, gpu.compute()).map_err(up)?;
        let norm = self.control(&inputs)?;
        self.decide(&inputs, norm.as_ref())?;
        let call = AdamW {
            params: self.params.view_mut(),
            grads: self.grads.view(),
            m: self.m.view_mut(),
            v: self.v.view_mut(),
            shadow: self.shadow.as_mut().map(DeviceBuf::view_mut),
            neg_a: Some(self.neg_a.view_mut()),
            groups: self.groups.view(),
            inputs: inputs.view(),
            state: self.state.view(),
            len: Val(self.len as i64),
            neg_a_len: self.table.neg_a_len(),
            marker: PhantomData,
        };
        call.launch(self.kernels).map_err(text)?;
        let state = self.state.to_host(gpu.compute()).map_err(up)?[0];
        match self.loss_scale.to_host(gpu.compute()).map_err(up)?[0] == state.scale {
            true => Ok(state),
            false => Err("loss_scale does not follow the state".to_owned()),
        }
    }

    /// The control clip, where there are spans; their norm.
    fn control(&mut self, inputs: &DeviceBuf<TailInputs>) -> Result<Option<DeviceBuf<f64>>, String> {
        if self.count == 0 {
            return Ok(None);
        }
        let gpu = self.gpu();
        let nan = vec![f64::NAN; self.count];
        let mut partial = DeviceBuf::from_host(gpu, &nan).map_err(up)?;
        let mut norm = DeviceBuf::from_host(gpu, &[-1.0f64]).map_err(up)?;
        let (count, marker) = (Val(self.count as i32), PhantomData);
        let sums = SpanSums {
            grads: self.grads.view(),
            pieces: self.pieces.view(),
            inputs: inputs.view(),
            state: self.state.view(),
            partial: partial.view_mut(),
            count,
            marker,
        };
        sums.launch(self.kernels).map_err(text)?;
        let clip = SpanClip {
            grads: self.grads.view_mut(),
            pieces: self.pieces.view(),
            inputs: inputs.view(),
            partial: partial.view(),
            norm: norm.view_mut(),
            count,
            marker,
        };
        clip.launch(self.kernels).map_err(text)?;
        Ok(Some(norm))
    }

    fn decide(
        &mut self,
        inputs: &DeviceBuf<TailInputs>,
        control_norm: Option<&DeviceBuf<f64>>,
    ) -> Result<(), String> {
        let (gpu, count, marker) = (self.gpu(), blocks(self.len), PhantomData);
        let capacity = Val(self.norms.len() as u32);
        let mut partial = DeviceBuf::from_host(gpu, &vec![f64::NAN; count]).map_err(up)?;
        let mut bad = DeviceBuf::from_host(gpu, &vec![u32::MAX; count]).map_err(up)?;
        let sums = GradSums {
            grads: self.grads.view(),
            inputs: inputs.view(),
            state: self.state.view(),
            partial: partial.view_mut(),
            bad: bad.view_mut(),
            len: Val(self.len as i64),
            marker,
        };
        sums.launch(self.kernels).map_err(text)?;
        let decide = Decide {
            partial: partial.view(),
            bad: bad.view(),
            control_norm: control_norm.map(DeviceBuf::view),
            inputs: inputs.view(),
            state: self.state.view_mut(),
            norms: self.norms.view_mut(),
            loss_scale: self.loss_scale.view_mut(),
            blocks: Val(count as i64),
            capacity,
            len: self.len,
            marker,
        };
        decide.launch(self.kernels).map_err(text)
    }

    /// Whether everything that outlives a step is what the host has.
    fn compare(&self, host: &Host) -> Result<(), String> {
        let stream = self.gpu().compute();
        let params = self.params.to_host(stream).map_err(up)?;
        same("params", &params, &host.params)?;
        same("m", &self.m.to_host(stream).map_err(up)?, &host.state.m)?;
        same("v", &self.v.to_host(stream).map_err(up)?, &host.state.v)?;
        if host.state.step == 0 {
            return Ok(());
        }
        if let Some(shadow) = &self.shadow {
            let wide: Vec<f32> = shadow.to_host(stream).map_err(up)?.iter().map(|w| w.to_f32()).collect();
            let want: Vec<f32> = params.iter().map(|&p| W::from_f32(p).to_f32()).collect();
            same("shadow", &wide, &want)?;
        }
        check_a(&self.neg_a.to_host(stream).map_err(up)?, &params)
    }
}

fn same(what: &str, got: &[f32], want: &[f32]) -> Result<(), String> {
    let differ = |(g, w): (&f32, &f32)| g.to_bits() != w.to_bits() && !(g.is_nan() && w.is_nan());
    match got.iter().zip(want).position(differ) {
        None if got.len() == want.len() => Ok(()),
        at => Err(format!("{what}: {at:?}, {:?}", at.map(|i| (got[i], want[i])))),
    }
}

/// Whether the relative error is above the bound, or NaN.
fn beyond(got: f64, want: f64, bound: f64) -> bool {
    let off = (got - want).abs() / want.abs();
    off.is_nan() || off > bound
}

/// A = −exp(A_log) within 2 ulp, in the place that the table gives.
fn check_a(neg_a: &[f32], params: &[f32]) -> Result<(), String> {
    let ranges: Vec<Range<usize>> = tensors(params.len()).into_iter().filter(|t| t.2).map(|t| t.0).collect();
    let lens: Vec<usize> = ranges.iter().map(Range::len).collect();
    for (index, range) in ranges.iter().enumerate() {
        let start = GroupTable::neg_a_offset(&lens, index);
        for (i, p) in params[range.clone()].iter().enumerate() {
            let (got, want) = (f64::from(neg_a[start + i]), -f64::from(*p).exp());
            if beyond(got, want, 2.4e-7) {
                return Err(format!("A of tensor {index} at {i}: {got}, expected {want}"));
            }
        }
    }
    Ok(())
}

/// One step on both sides; the outcomes must agree.
fn both<W: Elem>(
    host: &mut Host,
    device: &mut Device<'_, W>,
    grads: &[f32],
    options: &StepOptions,
    factor: f64,
) -> Result<TailState, String> {
    let scalars = host.scalars(options, factor)?;
    let inputs = inputs(&scalars, host, factor);
    let state = device.step(grads, &inputs)?;
    let outcome = host.step(&mut grads.to_vec(), &scalars);
    let want = match outcome {
        Ok(StepOutcome::Stepped { .. }) => TailOutcome::Applied,
        Ok(StepOutcome::SkippedSpike { .. }) => TailOutcome::Spike,
        Ok(StepOutcome::SkippedOutlier { .. }) => TailOutcome::Outlier,
        Ok(StepOutcome::SkippedNonFinite { .. }) => TailOutcome::NonFinite,
        Ok(StepOutcome::SkippedOverflow { .. }) => TailOutcome::Overflow,
        Err(OptimError::ScaleAtFloor { .. }) => TailOutcome::OverflowAtFloor,
        Err(other) => return Err(other.to_string()),
    };
    if state.outcome() != want || (state.applied == 1) != (want == TailOutcome::Applied) {
        return Err(format!("{:?} on the device, {outcome:?} on the host", state.outcome()));
    }
    if (state.step, state.scale) != (host.state.step, host.scaler.scale()) {
        return Err(format!(
            "step {} and scale {}, expected {} and {}",
            state.step,
            state.scale,
            host.state.step,
            host.scaler.scale()
        ));
    }
    if let Some(scaler) = host.scaler.state()
        && scaler.growth_tracker != state.growth_tracker
    {
        return Err(format!("tracker {}, expected {}", state.growth_tracker, scaler.growth_tracker));
    }
    if let Ok(StepOutcome::Stepped { grad_norm, clip }) = outcome
        && grad_norm.is_finite()
        && (beyond(state.grad_norm, grad_norm, 1e-14) || state.clip != clip)
    {
        let got = (state.grad_norm, state.clip);
        return Err(format!("norm and clip {got:?}, expected {:?}", (grad_norm, clip)));
    }
    device.compare(host)?;
    Ok(state)
}

fn gradient(step: usize, len: usize, size: f32) -> Vec<f32> {
    padded(draws::<f32>(&format!("grads {step}"), len).iter().map(|g| g * size).collect())
}

/// Six steps, every other one clipped.
fn steps<W: Elem>(kernels: &Kernels, len: usize, shadowed: bool) -> Result<(), String> {
    let mut host = Host::new(len, Vec::new(), LossScaler::disabled())?;
    let mut device = Device::<W>::new(kernels, &host, shadowed)?;
    for step in 0..6 {
        let options =
            if step % 2 == 0 { StepOptions::default() } else { StepOptions::default().with_clip(0.05) };
        let state = both(&mut host, &mut device, &gradient(step, len, 1.0), &options, 1.0 / 3.0)?;
        if (state.step, state.windows) != (step as u64 + 1, step as u64 + 1) {
            return Err(format!("step {} of {} windows", state.step, state.windows));
        }
    }
    Ok(())
}

/// Shadow and A from the parameters alone.
fn refresh(kernels: &Kernels, len: usize) -> Result<(), String> {
    let host = Host::new(len, Vec::new(), LossScaler::disabled())?;
    let mut device = Device::<f16>::new(kernels, &host, true)?;
    let call = Refresh {
        params: device.params.view(),
        shadow: device.shadow.as_mut().map(DeviceBuf::view_mut),
        neg_a: Some(device.neg_a.view_mut()),
        groups: device.groups.view(),
        len: Val(len as i64),
        neg_a_len: device.table.neg_a_len(),
        marker: PhantomData,
    };
    call.launch(kernels).map_err(text)?;
    let stream = kernels.gpu().compute();
    let shadow = device.shadow.as_ref().map(|s| s.to_host(stream)).transpose().map_err(up)?;
    let want: Vec<f16> = host.params.iter().map(|&p| f16::from_f32(p)).collect();
    if shadow != Some(want) {
        return Err("shadow".to_owned());
    }
    check_a(&device.neg_a.to_host(stream).map_err(up)?, &host.params)
}

/// Columns of a matrix, a long run and a single element; active, idle, and with an Inf outside the spans.
fn control_clip(kernels: &Kernels) -> Result<(), String> {
    let len = 70_000;
    let spans = vec![
        StridedSpan::columns(3, 400, 80, 5..21),
        StridedSpan::from(40_000..59_000),
        StridedSpan::from(69_999..70_000),
    ];
    let mut host = Host::new(len, spans, LossScaler::disabled())?;
    let mut device = Device::<bf16>::new(kernels, &host, true)?;
    for (step, max) in [0.5, 1e6, 0.01, 7.0].into_iter().enumerate() {
        let options = StepOptions::default().with_control_clip(max).with_clip(3.0);
        let grads = gradient(step, len, 1.0);
        let state = both(&mut host, &mut device, &grads, &options, 0.5)?;
        let squares = |r: Range<usize>| grads[r].iter().map(|g| (f64::from(*g) * 0.5).powi(2)).sum::<f64>();
        let columns: f64 = (0..400).map(|r| squares(3 + r * 80 + 5..3 + r * 80 + 21)).sum();
        let want = (columns + squares(40_000..59_000) + squares(69_999..70_000)).sqrt();
        if beyond(state.control_norm, want, 1e-12) {
            return Err(format!("control norm {}, expected {want}", state.control_norm));
        }
    }
    let mut grads = gradient(9, len, 1.0);
    grads[1] = f32::INFINITY;
    let options = StepOptions::default().with_control_clip(0.5);
    both(&mut host, &mut device, &grads, &options, 1.0)?;
    grads[1] = 0.0;
    grads[69_999] = f32::NAN;
    both(&mut host, &mut device, &grads, &options, 1.0)?;
    let state = both(&mut host, &mut device, &gradient(10, len, 1.0), &StepOptions::default(), 1.0)?;
    match (state.control_norm.is_nan(), state.non_finite, state.consecutive) {
        (true, 2, 0) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Spikes and NaN leave every bit; the counters tell them apart.
fn skips(kernels: &Kernels) -> Result<(), String> {
    let len = 20_000;
    let mut host = Host::new(len, Vec::new(), LossScaler::disabled())?;
    let mut device = Device::<f16>::new(kernels, &host, true)?;
    let guarded = StepOptions::default().with_skip_above(500.0);
    both(&mut host, &mut device, &gradient(0, len, 1.0), &guarded, 1.0)?;
    both(&mut host, &mut device, &gradient(1, len, 100.0), &guarded, 1.0)?;
    for (at, value) in [(len - 1, f32::NAN), (0, f32::INFINITY), (16_384, f32::NEG_INFINITY)] {
        let mut grads = gradient(2, len, 1.0);
        grads[at] = value;
        both(&mut host, &mut device, &grads, &StepOptions::default(), 1.0)?;
    }
    let state = both(&mut host, &mut device, &gradient(3, len, 1e30), &guarded, 1.0)?;
    let counts =
        (state.step, state.windows, state.spikes, state.non_finite, state.overflows, state.consecutive);
    match counts {
        (1, 6, 2, 3, 0, 5) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Outliers, and steps at the threshold's very edge, through three times the window: of a gradient of one block the norm
/// has the same bits on both sides, so threshold, decision and window must have, too.
fn outliers(kernels: &Kernels, window: usize) -> Result<(), String> {
    let len = 1000;
    let mut host = Host::new(len, Vec::new(), LossScaler::disabled())?;
    let config = NormWindowConfig { window, min_samples: window.min(20), relative_floor: 0.01 };
    host.norms = NormWindow::new(config).map_err(optim)?;
    let mut device = Device::<bf16>::new(kernels, &host, true)?;
    let mut skipped = 0;
    for step in 0..3 * window + 40 {
        let z_score = [1.0, 3.0, f64::MAX, 1.7][step % 4];
        let options = match step % 7 {
            6 => StepOptions::default(),
            _ => StepOptions::default().with_skip_z_score(z_score),
        };
        let mut grads = gradient(step, len, if step % 11 == 10 { 50.0 } else { 1.0 });
        if step % 13 == 12 {
            grads[step % len] = f32::NAN;
        }
        let want = host.norms.threshold(if step % 7 == 6 { f64::INFINITY } else { z_score });
        let state = both(&mut host, &mut device, &grads, &options, 1.0)?;
        skipped += u64::from(state.outcome() == TailOutcome::Outlier);
        let mut ring = device.norms.to_host(kernels.gpu().compute()).map_err(up)?;
        ring.rotate_left(state.oldest_norm as usize);
        ring.truncate(state.norms as usize);
        let bits = |x: &mut dyn Iterator<Item = f64>| x.map(f64::to_bits).collect::<Vec<_>>();
        let same_ring = bits(&mut ring.into_iter()) == bits(&mut host.norms.norms());
        let threshold = (state.outlier_above.to_bits(), want.unwrap_or(f64::INFINITY).to_bits());
        if !same_ring || threshold.0 != threshold.1 || state.outliers != skipped {
            return Err(format!("step {step}: ring {same_ring}, {threshold:x?}, {} skipped", state.outliers));
        }
    }
    match skipped {
        0 => Err("no step was an outlier".to_owned()),
        _ => Ok(()),
    }
}

/// Without the guard a NaN reaches its weight, and only that one.
fn propagates(kernels: &Kernels) -> Result<(), String> {
    let len = 1000;
    let mut host = Host::new(len, Vec::new(), LossScaler::disabled())?;
    let mut device = Device::<f32>::new(kernels, &host, false)?;
    let mut grads = gradient(0, len, 1.0);
    grads[17] = f32::NAN;
    let options = StepOptions::default().with_clip(1.0).with_non_finite(NonFinite::Propagate);
    let state = both(&mut host, &mut device, &grads, &options, 1.0)?;
    let params = device.params.to_host(kernels.gpu().compute()).map_err(up)?;
    let bad: Vec<usize> = (0..len).filter(|&i| params[i].is_nan()).collect();
    match bad == [17] && state.grad_norm.is_nan() && state.clip == 1.0 {
        true => Ok(()),
        false => Err(format!("{bad:?}, norm {}", state.grad_norm)),
    }
}

/// Growth, its cap, back-off, its floor, and an overflow at the floor.
fn scaler(kernels: &Kernels) -> Result<(), String> {
    let len = 5000;
    let config = ScalerConfig {
        init_scale: 512.0,
        growth_factor: 2.0,
        backoff_factor: 0.3,
        growth_interval: 2,
        max_scale: Some(1500.0),
        min_scale: Some(60.0),
    };
    let mut host = Host::new(len, Vec::new(), LossScaler::new(config).map_err(optim)?)?;
    let mut device = Device::<f16>::new(kernels, &host, true)?;
    let options = StepOptions::default().with_clip(1.0).with_skip_above(1e3);
    let mut scales = Vec::new();
    for (step, kind) in ".....x..x.s.xxx".chars().enumerate() {
        // Large enough that a wrong scale shows in the norm.
        let mut grads = gradient(step, len, host.scaler.scale() * if kind == 's' { 1e3 } else { 1.0 });
        if kind == 'x' {
            grads[step * 7] = f32::INFINITY;
        }
        scales.push(both(&mut host, &mut device, &grads, &options, 0.25)?.scale);
    }
    let state = device.state.to_host(kernels.gpu().compute()).map_err(up)?[0];
    match (state.outcome(), state.overflows, state.spikes, state.consecutive, state.scale) {
        (TailOutcome::OverflowAtFloor, 5, 1, 0, 60.0) => Ok(()),
        other => Err(format!("{other:?} after {scales:?}")),
    }
}

/// Two runs from the same start have the same bits, norms included.
fn two_runs(kernels: &Kernels) -> Result<(), String> {
    let run = || -> Result<(u64, Vec<f32>), String> {
        let len = 3_000_017;
        let mut host = Host::new(len, Vec::new(), LossScaler::disabled())?;
        let mut device = Device::<bf16>::new(kernels, &host, true)?;
        let options = StepOptions::default().with_clip(1.0);
        let state = both(&mut host, &mut device, &gradient(0, len, 1.0), &options, 1.0)?;
        Ok((state.grad_norm.to_bits(), device.params.to_host(kernels.gpu().compute()).map_err(up)?))
    };
    if run()? == run()? { Ok(()) } else { Err("two runs differ".to_owned()) }
}
