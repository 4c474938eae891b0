//! The tail on the device against `mamba-optim`'s on the CPU: bit for bit, but for the last place of a norm.

use crate::support::{Test, bits, close, draws, poisoned, wide};
use half::{bf16, f16};
use mamba_cuda::{DeviceBuf, Gpu};
use mamba_kernels::optim::{
    AdamW, Decide, GROUP, GradSums, GroupTable, Refresh, SpanClip, SpanPiece, SpanSums, TailInputs,
    TailOutcome, TailState, blocks, pieces,
};
use mamba_kernels::{Elem, Kernels, Launch, Val};
use mamba_optim::grads::sum_of_squares;
use mamba_optim::groups::{ControlSpans, StridedSpan};
use mamba_optim::{
    AdamWConfig, AdamWState, LossScaler, OptimError, ParamGroups, ParamSpan, ScalerConfig, Schedule,
    StepOptions, StepOutcome, StepScalars, TailArenas, run_tail,
};
use std::marker::PhantomData;
use std::ops::Range;

/// (name, test) of the tail.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for len in [1, 31, 4096, 16_384, 16_385, 100_003, 3_000_000] {
        all.push((format!("optim/norm/{len}"), Box::new(move |k| norm(k, len))));
    }
    for len in [64, 100, 1_003, 200_000] {
        all.push((format!("optim/tail/f32/{len}"), Box::new(move |k| tail::<f32>(k, len, false))));
        all.push((format!("optim/tail/bf16/{len}"), Box::new(move |k| tail::<bf16>(k, len, false))));
        all.push((format!("optim/tail/f16_scaled/{len}"), Box::new(move |k| tail::<f16>(k, len, true))));
    }
    all.push(("optim/refresh".to_owned(), Box::new(refresh)));
    all.push(("optim/overflow_at_the_floor".to_owned(), Box::new(floor)));
    all
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn ensure(ok: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what()) }
}

/// What the device reads, from the same settings as the CPU's scalars.
fn inputs(
    config: &AdamWConfig,
    options: &StepOptions,
    scaler: Option<&ScalerConfig>,
    grad_factor: f64,
) -> Result<TailInputs, String> {
    let on = LossScaler::new(scaler.copied().unwrap_or_default()).map_err(text)?;
    let scaler_or_not = if scaler.is_some() { on } else { LossScaler::disabled() };
    let s = StepScalars::new(config, &Schedule::constant(), 0, &scaler_or_not, options).map_err(text)?;
    let c = scaler.copied().unwrap_or_default();
    Ok(TailInputs {
        beta1_exact: s.beta1_exact,
        beta2_exact: s.beta2_exact,
        clip_max: s.clip_max,
        control_clip_max: s.control_clip_max,
        skip_above: s.skip_above,
        grad_factor,
        growth_factor: c.growth_factor,
        backoff_factor: c.backoff_factor,
        lr: s.lr,
        decay: s.decay,
        beta1: s.beta1,
        one_minus_beta1: s.one_minus_beta1,
        beta2: s.beta2,
        one_minus_beta2: s.one_minus_beta2,
        eps: s.eps,
        min_scale: c.min_scale.unwrap_or(0.0),
        max_scale: c.max_scale.unwrap_or(f32::INFINITY),
        growth_interval: c.growth_interval,
        flags: s.flags,
        reserved: 0,
    })
}

/// Everything a tail touches on the device.
struct Device<W: Elem> {
    len: usize,
    params: DeviceBuf<f32>,
    grads: DeviceBuf<f32>,
    m: DeviceBuf<f32>,
    v: DeviceBuf<f32>,
    shadow: DeviceBuf<W>,
    neg_a: DeviceBuf<f32>,
    neg_a_len: usize,
    groups: DeviceBuf<u32>,
    pieces: DeviceBuf<SpanPiece>,
    span_sums: DeviceBuf<f64>,
    control_norm: DeviceBuf<f64>,
    partial: DeviceBuf<f64>,
    bad: DeviceBuf<u32>,
    inputs: DeviceBuf<TailInputs>,
    state: DeviceBuf<TailState>,
    loss_scale: DeviceBuf<f32>,
}

impl<W: Elem> Device<W> {
    fn new(
        gpu: &Gpu,
        params: &[f32],
        table: &GroupTable,
        spans: &[SpanPiece],
        scale: f32,
    ) -> Result<Self, String> {
        let len = params.len();
        let nan = |n| poisoned::<f32>(gpu, n).map_err(text);
        let mut partial = DeviceBuf::uninit(gpu, blocks(len)).map_err(text)?;
        partial.view_mut().fill_bytes(0xff, gpu.compute()).map_err(text)?;
        Ok(Self {
            len,
            params: DeviceBuf::from_host(gpu, params).map_err(text)?,
            grads: nan(len)?,
            m: DeviceBuf::zeros(gpu, len).map_err(text)?,
            v: DeviceBuf::zeros(gpu, len).map_err(text)?,
            shadow: poisoned(gpu, len).map_err(text)?,
            neg_a: nan(table.neg_a_len())?,
            neg_a_len: table.neg_a_len(),
            groups: DeviceBuf::from_host(gpu, table.words()).map_err(text)?,
            pieces: DeviceBuf::from_host(gpu, spans).map_err(text)?,
            span_sums: DeviceBuf::zeros(gpu, spans.len()).map_err(text)?,
            control_norm: DeviceBuf::zeros(gpu, 1).map_err(text)?,
            partial,
            bad: DeviceBuf::uninit(gpu, blocks(len)).map_err(text)?,
            inputs: DeviceBuf::uninit(gpu, 1).map_err(text)?,
            state: DeviceBuf::from_host(gpu, &[TailState::new(scale)]).map_err(text)?,
            loss_scale: DeviceBuf::from_host(gpu, &[scale]).map_err(text)?,
        })
    }

    /// The whole tail, in the order that the trainer runs it.
    fn run(&mut self, kernels: &Kernels, inputs: &TailInputs, grads: &[f32]) -> Result<TailState, String> {
        let stream = kernels.gpu().compute();
        self.inputs.view_mut().write(&[*inputs], stream).map_err(text)?;
        self.grads.view_mut().write(grads, stream).map_err(text)?;
        self.control(kernels).map_err(text)?;
        self.rest(kernels).map_err(text)?;
        let state = self.state.to_host(stream).map_err(text)?[0];
        let scale = self.loss_scale.to_host(stream).map_err(text)?[0];
        ensure(scale.to_bits() == state.scale.to_bits(), || "the copy of the scale lags".to_owned())?;
        Ok(state)
    }

    fn control(&mut self, kernels: &Kernels) -> mamba_kernels::Result<()> {
        let (marker, count) = (PhantomData, Val(self.pieces.len() as i32));
        SpanSums {
            grads: self.grads.view(),
            pieces: self.pieces.view(),
            inputs: self.inputs.view(),
            state: self.state.view(),
            partial: self.span_sums.view_mut(),
            count,
            marker,
        }
        .launch(kernels)?;
        SpanClip {
            grads: self.grads.view_mut(),
            pieces: self.pieces.view(),
            inputs: self.inputs.view(),
            partial: self.span_sums.view(),
            norm: self.control_norm.view_mut(),
            count,
            marker: PhantomData,
        }
        .launch(kernels)
    }

    fn rest(&mut self, kernels: &Kernels) -> mamba_kernels::Result<()> {
        let len = Val(self.len as i64);
        GradSums {
            grads: self.grads.view(),
            inputs: self.inputs.view(),
            state: self.state.view(),
            partial: self.partial.view_mut(),
            bad: self.bad.view_mut(),
            len,
            marker: PhantomData,
        }
        .launch(kernels)?;
        Decide {
            partial: self.partial.view(),
            bad: self.bad.view(),
            control_norm: Some(self.control_norm.view()),
            inputs: self.inputs.view(),
            state: self.state.view_mut(),
            loss_scale: self.loss_scale.view_mut(),
            blocks: Val(blocks(self.len) as i64),
            len: self.len,
            marker: PhantomData,
        }
        .launch(kernels)?;
        AdamW {
            params: self.params.view_mut(),
            grads: self.grads.view(),
            m: self.m.view_mut(),
            v: self.v.view_mut(),
            shadow: Some(self.shadow.view_mut()),
            neg_a: Some(self.neg_a.view_mut()),
            groups: self.groups.view(),
            inputs: self.inputs.view(),
            state: self.state.view(),
            len,
            neg_a_len: self.neg_a_len,
            marker: PhantomData,
        }
        .launch(kernels)
    }
}

fn norm(kernels: &Kernels, len: usize) -> Result<(), String> {
    let gpu = kernels.gpu();
    let table = GroupTable::new(len, std::iter::empty(), std::iter::empty()).map_err(text)?;
    let params = draws::<f32>("params", len);
    let grads = draws::<f32>("grads", len);
    let config = AdamWConfig::default();
    let input = inputs(&config, &StepOptions::default(), None, 0.375)?;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut device = Device::<f32>::new(gpu, &params, &table, &[], 1.0)?;
        let state = device.run(kernels, &input, &grads)?;
        let partial = device.partial.to_host(gpu.compute()).map_err(text)?;
        seen.push((state.grad_norm, partial));
    }
    ensure(seen[0] == seen[1], || "two runs differ".to_owned())?;
    // Each block has the CPU's bits; the blocks are added in another order.
    for (i, (got, block)) in seen[0].1.iter().zip(grads.chunks(1 << 14)).enumerate() {
        let want = sum_of_squares(block, 0.375);
        ensure(got.to_bits() == want.to_bits(), || format!("block {i}: {got:e}, not {want:e}"))?;
    }
    let want = sum_of_squares(&grads, 0.375).sqrt();
    close("norm", &[seen[0].0], &[want], 1e-15)
}

/// A model's arena in small: a decaying tensor, one that does not, an A_log, and padding.
struct Arena {
    len: usize,
    decay: Vec<Range<usize>>,
    keep: Vec<Range<usize>>,
    a_log: Range<usize>,
    spans: Vec<StridedSpan>,
}

impl Arena {
    fn new(len: usize) -> Self {
        let groups = len / GROUP;
        let (first, second) = (groups / 2 * GROUP, groups * 3 / 4 * GROUP);
        let ranges = |r: Range<usize>| if r.is_empty() { vec![] } else { vec![r] };
        // Where there is room, the last tensor leaves padding behind it.
        let end = if second + 10 < len { len - 3 } else { len };
        let mut spans = vec![StridedSpan::from(second..end)];
        if first >= 128 {
            spans.push(StridedSpan::columns(0, first / 16, 16, 2..7));
        }
        Self { len, decay: ranges(0..first), keep: ranges(first..second), a_log: second..end, spans }
    }

    fn groups(&self) -> Result<ParamGroups, String> {
        let named = |n: &'static str, d: bool| move |r: &Range<usize>| ParamSpan::new(n, r.clone(), d);
        let mut spans: Vec<ParamSpan> = self.decay.iter().map(named("w", true)).collect();
        spans.extend(self.keep.iter().map(named("b", false)));
        spans.push(ParamSpan::new("A_log", self.a_log.clone(), false));
        ParamGroups::new(self.len, spans).map_err(text)
    }

    fn table(&self) -> Result<GroupTable, String> {
        GroupTable::new(self.len, self.decay.iter().cloned(), [self.a_log.clone()]).map_err(text)
    }

    fn pieces(&self) -> Vec<SpanPiece> {
        pieces(self.spans.iter().map(|s| (s.start, s.width, s.stride, s.rows)))
    }

    /// The padding holds zeros in every arena.
    fn clear_padding(&self, x: &mut [f32]) {
        x[self.a_log.end..].fill(0.0);
    }
}

fn options(step: usize) -> StepOptions {
    let options = StepOptions::default();
    match step % 5 {
        0 => options,
        1 => options.with_clip(0.5),
        2 => options.with_skip_above(2.5).with_clip(1.0),
        3 => options.with_control_clip(0.25).with_clip(0.75),
        _ => options.with_control_clip(1e9),
    }
}

/// 60 steps with everything changing from one to the next, on both sides.
fn tail<W: Elem>(kernels: &Kernels, len: usize, scaled: bool) -> Result<(), String> {
    let arena = Arena::new(len);
    let (groups, table, spans) = (arena.groups()?, arena.table()?, arena.pieces());
    let control = ControlSpans::new(len, arena.spans.clone()).map_err(text)?;
    let scaler_config = ScalerConfig { init_scale: 1024.0, growth_interval: 7, ..ScalerConfig::default() };
    let mut scaler = match scaled {
        true => LossScaler::new(scaler_config).map_err(text)?,
        false => LossScaler::disabled(),
    };
    let mut params = draws::<f32>("params", len);
    arena.clear_padding(&mut params);
    let mut state = AdamWState::new(len);
    let mut device = Device::<W>::new(kernels.gpu(), &params, &table, &spans, scaler.scale())?;
    for step in 0..60 {
        let lr = 1e-3 * (1 + step % 4) as f64;
        let config = AdamWConfig::default().with_lr(lr).map_err(text)?;
        let (options, factor) = (options(step), 1.0 / (1 + step % 3) as f64);
        let mut grads = draws::<f32>(&format!("grads {step}"), len);
        let size = if step % 8 == 6 { 10.0 } else { 1.0 } / (len as f32).sqrt();
        grads.iter_mut().for_each(|g| *g *= size * scaler.scale());
        arena.clear_padding(&mut grads);
        match step {
            11 => grads[0] = f32::INFINITY,
            23 => grads[arena.a_log.start] = f32::NAN,
            37 => grads[arena.a_log.end - 1] = f32::NEG_INFINITY,
            _ => {}
        }
        let mut scalars =
            StepScalars::new(&config, &Schedule::constant(), state.step, &scaler, &options).map_err(text)?;
        scalars.inv_scale = (factor / f64::from(scaler.scale())) as f32;
        let got = device.run(
            kernels,
            &inputs(&config, &options, scaled.then_some(&scaler_config), factor)?,
            &grads,
        )?;
        let arenas = TailArenas { params: &mut params, grads: &mut grads, state: &mut state };
        let want = run_tail(arenas, &groups, &control, &mut scaler, &scalars, |_| {}).map_err(text)?;
        compare(&got, &want, &scaler, state.step).map_err(|e| format!("step {step}: {e}"))?;
        weights::<W>(kernels, &device, &params, &state, &arena).map_err(|e| format!("step {step}: {e}"))?;
    }
    Ok(())
}

fn compare(got: &TailState, want: &StepOutcome, scaler: &LossScaler, step: u64) -> Result<(), String> {
    let outcome = match want {
        StepOutcome::Stepped { .. } => TailOutcome::Applied,
        StepOutcome::SkippedSpike { .. } => TailOutcome::Spike,
        StepOutcome::SkippedNonFinite { .. } => TailOutcome::NonFinite,
        StepOutcome::SkippedOverflow { .. } => TailOutcome::Overflow,
    };
    ensure(got.outcome() == outcome, || format!("{:?}, not {outcome:?}", got.outcome()))?;
    ensure(got.step == step, || format!("{} steps, not {step}", got.step))?;
    if let Some(norm) = want.grad_norm().filter(|n| n.is_finite()) {
        close("norm", &[got.grad_norm], &[norm], 1e-14)?;
    }
    if let StepOutcome::Stepped { clip, .. } = want {
        ensure(got.clip.to_bits() == clip.to_bits(), || format!("clip {}, not {clip}", got.clip))?;
    }
    let scale = (scaler.scale(), scaler.state().map_or(0, |s| s.growth_tracker));
    let seen = (got.scale, got.growth_tracker);
    ensure(seen == scale, || format!("scale and tracker {seen:?}, not {scale:?}"))
}

fn weights<W: Elem>(
    kernels: &Kernels,
    device: &Device<W>,
    params: &[f32],
    state: &AdamWState,
    arena: &Arena,
) -> Result<(), String> {
    let stream = kernels.gpu().compute();
    let host = |b: &DeviceBuf<f32>| b.to_host(stream).map_err(text);
    let same = |what: &str, got: &[f32], want: &[f32]| {
        ensure(bits(got) == bits(want), || {
            let at = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits()).unwrap_or(0);
            format!("{what} {at}: {:e}, not {:e}", got[at], want[at])
        })
    };
    same("m", &host(&device.m)?, &state.m)?;
    same("v", &host(&device.v)?, &state.v)?;
    same("parameter", &host(&device.params)?, params)?;
    if state.step > 0 {
        let shadow: Vec<W> = params.iter().map(|&p| W::from_f32(p)).collect();
        let got = device.shadow.to_host(stream).map_err(text)?;
        ensure(bits(&got) == bits(&shadow), || "the shadow is not the rounded master".to_owned())?;
        let want: Vec<f64> = params[arena.a_log.clone()].iter().map(|&p| -f64::from(p).exp()).collect();
        close("A", &wide(&host(&device.neg_a)?[..want.len()]), &want, 2e-7)?;
    }
    Ok(())
}

fn refresh(kernels: &Kernels) -> Result<(), String> {
    let (gpu, arena) = (kernels.gpu(), Arena::new(1_003));
    let (params, table) = (draws::<f32>("params", arena.len), arena.table()?);
    let mut device = Device::<bf16>::new(gpu, &params, &table, &[], 1.0)?;
    Refresh {
        params: device.params.view(),
        shadow: Some(device.shadow.view_mut()),
        neg_a: Some(device.neg_a.view_mut()),
        groups: device.groups.view(),
        len: Val(arena.len as i64),
        neg_a_len: device.neg_a_len,
        marker: PhantomData,
    }
    .launch(kernels)
    .map_err(text)?;
    let mut state = AdamWState::new(arena.len);
    state.step = 1;
    weights::<bf16>(kernels, &device, &params, &state, &arena)
}

fn floor(kernels: &Kernels) -> Result<(), String> {
    let scaler_config = ScalerConfig { init_scale: 1.0, ..ScalerConfig::default() };
    let mut scaler = LossScaler::new(scaler_config).map_err(text)?;
    let params = draws::<f32>("params", 64);
    let table = GroupTable::new(64, std::iter::once(0..64), std::iter::empty()).map_err(text)?;
    let mut device = Device::<f32>::new(kernels.gpu(), &params, &table, &[], 1.0)?;
    let input = inputs(&AdamWConfig::default(), &StepOptions::default(), Some(&scaler_config), 1.0)?;
    let got = device.run(kernels, &input, &[f32::NAN; 64])?;
    ensure(matches!(scaler.update(true), Err(OptimError::ScaleAtFloor { .. })), || "CPU".to_owned())?;
    let seen = (got.outcome(), got.scale, got.growth_tracker, got.step);
    ensure(seen == (TailOutcome::OverflowAtFloor, 1.0, 0, 0), || format!("{seen:?}"))?;
    let after = device.params.to_host(kernels.gpu().compute()).map_err(text)?;
    ensure(bits(&after) == bits(&params), || "weights moved".to_owned())
}
