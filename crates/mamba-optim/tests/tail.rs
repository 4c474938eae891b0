//! The tail as a whole: order, outcomes, and what must not move.
#![allow(clippy::unwrap_used)]

use mamba_optim::{
    AdamWConfig, AdamWState, ControlSpans, LossScaler, NonFinite, NormWindow, NormWindowConfig, OptimError,
    Optimizer, ParamGroups, ParamSpan, ScalerConfig, ScalerState, Schedule, ScheduleKind, StepOptions,
    StepOutcome, StepScalars, StridedSpan, TailArenas, run_tail,
};
use proptest::prelude::*;

fn wave(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + seed * 104_729 + 13) % 1009) as f32 / 1009.0 - 0.5).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|f| f.to_bits()).collect()
}

/// Everything a tail works on.
#[derive(Clone)]
struct Rig {
    params: Vec<f32>,
    grads: Vec<f32>,
    state: AdamWState,
    norms: NormWindow,
    groups: ParamGroups,
    control: ControlSpans,
    scaler: LossScaler,
    options: StepOptions,
}

impl Rig {
    fn new(len: usize) -> Self {
        Self {
            params: wave(0, len),
            grads: wave(1, len),
            state: AdamWState::new(len),
            norms: NormWindow::default(),
            groups: ParamGroups::uniform(len).unwrap(),
            control: ControlSpans::none(),
            scaler: LossScaler::disabled(),
            options: StepOptions::default(),
        }
    }

    fn scaled(len: usize) -> Self {
        let mut rig = Self::new(len);
        rig.scaler = LossScaler::new(ScalerConfig::default()).unwrap();
        rig.grads.iter_mut().for_each(|g| *g *= 65_536.0);
        rig
    }

    fn scalars(&self) -> StepScalars {
        let (config, schedule) = (AdamWConfig::default(), Schedule::constant());
        StepScalars::new(&config, &schedule, self.state.step, &self.scaler, &self.options).unwrap()
    }

    fn run(&mut self) -> Result<StepOutcome, OptimError> {
        let scalars = self.scalars();
        self.run_with(&scalars)
    }

    fn run_with(&mut self, scalars: &StepScalars) -> Result<StepOutcome, OptimError> {
        let Self { params, grads, state, norms, groups, control, scaler, .. } = self;
        run_tail(TailArenas { params, grads, state, norms }, groups, control, scaler, scalars, |_| {})
    }

    /// Bits of what a skipped step must not move.
    fn training_bits(&self) -> (Vec<u32>, Vec<u32>, Vec<u32>, u64, Vec<u64>) {
        let norms = self.norms.norms().map(f64::to_bits).collect();
        (bits(&self.params), bits(&self.state.m), bits(&self.state.v), self.state.step, norms)
    }

    /// A step whose gradient has this norm.
    fn run_norm(&mut self, norm: f32) -> Result<StepOutcome, OptimError> {
        self.grads.fill(0.0);
        self.grads[0] = norm * self.scaler.scale();
        self.run()
    }
}

#[test]
fn control_clip_then_norm_then_clip() {
    let mut rig = Rig::new(6);
    // Columns 0..1 of a [2, 2] matrix hold the control gradients 3 and 4.
    rig.grads = vec![3.0, 2.0, 4.0, 4.0, 0.0, 1.0];
    rig.control = ControlSpans::new(6, vec![StridedSpan::columns(0, 2, 2, 0..1)]).unwrap();
    rig.options = StepOptions::default().with_control_clip(2.0).with_clip(1.0);
    let outcome = rig.run().unwrap();
    let control = (2.0f64 / (5.0 + 1e-6)) as f32;
    let rest = 4.0 + 16.0 + 1.0;
    let (a, b) = (f64::from(3.0 * control), f64::from(4.0 * control));
    let norm = (a * a + b * b + rest).sqrt();
    let clip = (1.0 / (norm + 1e-6)) as f32;
    let StepOutcome::Stepped { grad_norm, clip: got } = outcome else { panic!("{outcome:?}") };
    // Sum order differs from the line above: measured equal, one ulp of room.
    assert!((grad_norm - norm).abs() <= 1e-15 * norm, "{grad_norm} {norm}");
    assert_eq!(got, clip);
    assert_eq!(rig.grads, [3.0 * control, 2.0, 4.0 * control, 4.0, 0.0, 1.0]);
    assert_eq!(rig.state.m[3], 0.1 * (4.0 * clip));
    assert_eq!(rig.state.step, 1);
}

#[test]
fn a_clip_that_does_nothing_changes_no_bit() {
    let len = 20_011;
    let mut plain = Rig::new(len);
    let mut clipped = plain.clone();
    clipped.control = ControlSpans::new(len, vec![StridedSpan::from(3..700)]).unwrap();
    clipped.options = StepOptions::default().with_clip(1e6).with_control_clip(1e6).with_skip_above(1e6);
    for step in 0..5 {
        plain.grads = wave(step + 1, len);
        clipped.grads = wave(step + 1, len);
        let outcome = plain.run().unwrap();
        assert!(matches!(outcome, StepOutcome::Stepped { clip: 1.0, .. }));
        assert_eq!(clipped.run().unwrap(), outcome);
    }
    assert_eq!(plain.training_bits(), clipped.training_bits());
    assert_eq!(bits(&plain.grads), bits(&clipped.grads));
}

#[test]
fn every_thread_count_gives_the_same_bits() {
    let len = 150_001;
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut rig = Rig::new(len);
            let columns = StridedSpan::columns(11, 900, 120, 5..53);
            rig.control = ControlSpans::new(len, vec![columns, StridedSpan::from(120_000..150_000)]).unwrap();
            rig.options = StepOptions::default().with_clip(3.0).with_control_clip(2.0);
            let mut norms = Vec::new();
            for step in 0..4 {
                rig.grads = wave(step + 1, len);
                norms.push(rig.run().unwrap().grad_norm().unwrap().to_bits());
            }
            (rig.training_bits(), norms, bits(&rig.grads))
        })
    };
    let one = run(1);
    for threads in [2, 3, 7] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn a_bad_element_anywhere_skips_and_moves_nothing() {
    let len = 33_001;
    for options in [StepOptions::default(), StepOptions::default().with_clip(1.0).with_skip_above(1e9)] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 16_383, 16_384, len - 1] {
                let mut rig = Rig::new(len);
                rig.options = options;
                rig.run().unwrap();
                let before = rig.training_bits();
                rig.grads = wave(2, len);
                rig.grads[at] = bad;
                let outcome = rig.run().unwrap();
                assert!(matches!(outcome, StepOutcome::SkippedNonFinite { .. }), "{outcome:?}");
                assert_eq!(outcome.grad_norm().unwrap().is_nan(), bad.is_nan());
                assert!(rig.training_bits() == before);
            }
        }
    }
}

#[test]
fn a_bad_control_gradient_is_not_scaled_away() {
    let mut rig = Rig::new(100);
    rig.control = ControlSpans::new(100, vec![StridedSpan::from(0..50)]).unwrap();
    rig.options = StepOptions::default().with_control_clip(1e-3);
    rig.grads[7] = f32::INFINITY;
    let grads = bits(&rig.grads);
    assert_eq!(rig.run(), Ok(StepOutcome::SkippedNonFinite { grad_norm: f64::INFINITY }));
    assert_eq!(bits(&rig.grads), grads);
}

#[test]
fn propagating_shows_exactly_the_bad_elements() {
    let len = 64;
    for bad in [f32::NAN, f32::INFINITY] {
        let mut rig = Rig::new(len);
        let mut clean = rig.clone();
        rig.options = StepOptions::default().with_clip(1e-3).with_non_finite(NonFinite::Propagate);
        rig.grads[5] = bad;
        let outcome = rig.run().unwrap();
        assert!(matches!(outcome, StepOutcome::Stepped { clip: 1.0, .. }), "{outcome:?}");
        clean.run().unwrap();
        assert!(rig.params[5].is_nan());
        for i in (0..len).filter(|&i| i != 5) {
            assert_eq!(rig.params[i].to_bits(), clean.params[i].to_bits());
        }
        // A spike skip always takes non-finite norms, whatever the policy.
        let mut rig = Rig::new(len);
        rig.options = StepOptions::default().with_skip_above(1e9).with_non_finite(NonFinite::Propagate);
        rig.grads[5] = bad;
        assert!(matches!(rig.run(), Ok(StepOutcome::SkippedNonFinite { .. })));
    }
}

#[test]
fn a_spike_skips_without_a_clip_and_uses_the_unscaled_norm() {
    let mut rig = Rig::scaled(2);
    rig.grads = vec![3.0 * 65_536.0, 4.0 * 65_536.0];
    rig.options = StepOptions::default().with_skip_above(4.75);
    let before = rig.training_bits();
    assert_eq!(rig.run(), Ok(StepOutcome::SkippedSpike { grad_norm: 5.0, threshold: 4.75 }));
    assert_eq!(rig.training_bits(), before);
    // No overflow was seen, so the scaler counts the step as clean.
    assert_eq!(rig.scaler.state(), Some(ScalerState { scale: 65_536.0, growth_tracker: 1 }));
    rig.options = StepOptions::default().with_skip_above(5.0);
    assert_eq!(rig.run(), Ok(StepOutcome::Stepped { grad_norm: 5.0, clip: 1.0 }));
}

#[test]
fn an_overflow_moves_the_scale_alone_and_the_next_step_is_as_if_it_had_not_been() {
    let len = 20_003;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (clip, at) in [(false, 0), (true, len - 1)] {
            let mut rig = Rig::scaled(len);
            if clip {
                rig.control = ControlSpans::new(len, vec![StridedSpan::from(0..9_000)]).unwrap();
                rig.options = StepOptions::default().with_clip(1.0).with_control_clip(0.5);
            }
            let mut straight = rig.clone();
            straight.run().unwrap();
            rig.run().unwrap();

            let before = rig.training_bits();
            rig.grads = wave(2, len).iter().map(|g| g * 65_536.0).collect();
            rig.grads[at] = bad;
            let grads = bits(&rig.grads);
            assert_eq!(rig.run(), Ok(StepOutcome::SkippedOverflow { loss_scale: 65_536.0 }));
            assert!(rig.training_bits() == before && bits(&rig.grads) == grads);
            assert_eq!(rig.scaler.state(), Some(ScalerState { scale: 32_768.0, growth_tracker: 0 }));

            rig.grads = wave(3, len).iter().map(|g| g * 32_768.0).collect();
            straight.grads = wave(3, len).iter().map(|g| g * 65_536.0).collect();
            assert_eq!(rig.run(), straight.run());
            assert!(rig.training_bits() == straight.training_bits());
        }
    }
}

#[test]
fn an_overflow_at_the_floor_is_an_error_that_changes_nothing() {
    let mut rig = Rig::new(40);
    rig.scaler = LossScaler::new(ScalerConfig { init_scale: 1.0, ..Default::default() }).unwrap();
    rig.control = ControlSpans::new(40, vec![StridedSpan::from(0..10)]).unwrap();
    rig.options = StepOptions::default().with_control_clip(1e-3);
    rig.grads[39] = f32::NAN;
    let (before, grads, scaler) = (rig.training_bits(), bits(&rig.grads), rig.scaler.clone());
    assert_eq!(rig.run(), Err(OptimError::ScaleAtFloor { scale: 1.0, floor: 1.0 }));
    assert_eq!((rig.training_bits(), bits(&rig.grads)), (before, grads));
    assert_eq!(rig.scaler, scaler);
}

#[test]
fn a_gradient_that_overflows_only_when_unscaled_is_not_the_scalers_fault() {
    let mut rig = Rig::new(3);
    let config = ScalerConfig { init_scale: 0.5, min_scale: None, ..Default::default() };
    rig.scaler = LossScaler::new(config).unwrap();
    rig.grads = vec![f32::MAX, 1.0, 1.0];
    let before = rig.training_bits();
    assert_eq!(rig.run(), Ok(StepOutcome::SkippedNonFinite { grad_norm: f64::INFINITY }));
    assert_eq!(rig.training_bits(), before);
    assert_eq!(rig.scaler.state(), Some(ScalerState { scale: 0.5, growth_tracker: 1 }));
}

#[test]
fn the_gradient_factor_is_part_of_the_norm() {
    let mut rig = Rig::new(2);
    rig.grads = vec![12.0, 16.0];
    let scalars = rig.scalars().with_grad_factor(0.25).unwrap();
    assert_eq!(rig.run_with(&scalars), Ok(StepOutcome::Stepped { grad_norm: 5.0, clip: 1.0 }));
    assert_eq!(rig.state.m, [0.1 * 3.0, 0.1 * 4.0]);
}

#[test]
fn stale_scalars_and_misfits_are_refused_untouched() {
    let mut rig = Rig::scaled(10);
    let old = rig.scalars();
    rig.run().unwrap();
    let before = rig.training_bits();
    let stale = Err(OptimError::StaleScalars { name: "step", got: 1.0, expected: 2.0 });
    assert_eq!(rig.run_with(&old), stale);

    let now = rig.scalars();
    rig.scaler.update(true).unwrap();
    let stale = Err(OptimError::StaleScalars { name: "loss_scale", got: 65_536.0, expected: 32_768.0 });
    assert_eq!(rig.run_with(&now), stale);

    rig.options = StepOptions::default().with_control_clip(1.0);
    assert_eq!(rig.run(), Err(OptimError::NoControlSpans { max_norm: 1.0 }));
    rig.control = ControlSpans::new(11, vec![StridedSpan::from(9..11)]).unwrap();
    assert!(matches!(rig.run(), Err(OptimError::SpanRange { start: 9, end: 11, len: 10, .. })));
    rig.options = StepOptions::default();
    rig.grads.push(0.0);
    rig.control = ControlSpans::none();
    assert_eq!(rig.run(), Err(OptimError::Length { name: "grads", got: 11, expected: 10 }));
    assert_eq!(rig.training_bits(), before);
}

#[test]
fn an_outlier_among_the_last_norms_is_skipped_and_leaves_no_trace() {
    for mut rig in [Rig::new(3), Rig::scaled(3)] {
        rig.norms =
            NormWindow::new(NormWindowConfig { window: 4, min_samples: 3, relative_floor: 0.0 }).unwrap();
        rig.options = StepOptions::default().with_skip_z_score(2.0);
        // Too few norms: anything goes, and enters the window.
        for norm in [64.0, 2.0, 4.0, 4.0, 6.0] {
            assert!(rig.run_norm(norm).unwrap().stepped(), "{norm}");
        }
        let threshold = 4.0 + 2.0 * (8.0f64 / 3.0).sqrt();
        let (before, tracker) = (rig.training_bits(), rig.scaler.state().map(|s| s.growth_tracker));
        for norm in [8.0, 7.5, 1e30] {
            let skipped = StepOutcome::SkippedOutlier { grad_norm: f64::from(norm), threshold };
            assert_eq!(rig.run_norm(norm), Ok(skipped));
        }
        assert_eq!(rig.training_bits(), before);
        // To the loss scaler these were clean steps.
        assert_eq!(rig.scaler.state().map(|s| s.growth_tracker), tracker.map(|t| t + 3));
        // Below the threshold is none; nor is a norm that is small.
        assert!(rig.run_norm(7.25).unwrap().stepped() && rig.run_norm(0.0).unwrap().stepped());
        assert_eq!(rig.norms.norms().collect::<Vec<_>>(), [4.0, 6.0, 7.25, 0.0]);
        // A fixed threshold comes first, and the other way round the window sees what it lets through.
        rig.options = rig.options.with_skip_above(20.0);
        let spike = StepOutcome::SkippedSpike { grad_norm: 32.0, threshold: 20.0 };
        assert_eq!(rig.run_norm(32.0), Ok(spike));
        assert!(matches!(rig.run_norm(16.0), Ok(StepOutcome::SkippedOutlier { .. })));
        // Off, the window goes on.
        rig.options = StepOptions::default();
        assert!(rig.run_norm(16.0).unwrap().stepped());
        assert_eq!(rig.norms.norms().collect::<Vec<_>>(), [6.0, 7.25, 0.0, 16.0]);
    }
}

#[test]
fn a_norm_that_is_not_finite_never_enters_the_window() {
    for value in [f32::NAN, f32::INFINITY] {
        let mut rig = Rig::new(3);
        rig.options = StepOptions::default().with_non_finite(NonFinite::Propagate);
        rig.grads[0] = value;
        assert!(rig.run().unwrap().stepped());
        assert_eq!((rig.state.step, rig.norms.norms().count()), (1, 0));
        // With a z-score a non-finite norm is skipped, whatever the policy and the history.
        let mut rig = Rig::new(3);
        rig.options = rig.options.with_non_finite(NonFinite::Propagate).with_skip_z_score(1e9);
        let before = rig.training_bits();
        rig.grads[0] = value;
        assert!(matches!(rig.run(), Ok(StepOutcome::SkippedNonFinite { .. })));
        assert_eq!(rig.training_bits(), before);
    }
}

#[test]
fn derived_values_are_refreshed_after_real_steps_only() {
    let config = AdamWConfig::default();
    let mut optimizer = Optimizer::new(config, ParamGroups::uniform(4).unwrap());
    let mut params = [0.5f32, -0.5, 1.0, 2.0];
    let derived = |p: &[f32]| p.iter().map(|x| -x.exp()).collect::<Vec<_>>();
    let mut a = derived(&params);
    optimizer.step_with(&mut params, &mut [1.0, -1.0, 0.5, 0.0], |p| a = derived(p)).unwrap();
    assert_eq!(a, derived(&params));
    assert_ne!(a, derived(&[0.5, -0.5, 1.0, 2.0]));
    let mut called = false;
    optimizer.step_with(&mut params, &mut [f32::NAN, 0.0, 0.0, 0.0], |_| called = true).unwrap();
    assert!(!called);
}

fn optimizer(len: usize) -> Optimizer {
    let spans = vec![ParamSpan::new("w", 0..len / 2, true), ParamSpan::new("b", len / 2..len, false)];
    let schedule = ScheduleKind::Cosine { warmup: 3, total: 30, min_factor: 0.1 };
    let norms = NormWindowConfig { window: 6, min_samples: 3, relative_floor: 0.1 };
    let mut optimizer = Optimizer::new(AdamWConfig::default(), ParamGroups::new(len, spans).unwrap())
        .with_schedule(Schedule::new(schedule).unwrap())
        .with_scaler(LossScaler::new(ScalerConfig { growth_interval: 4, ..Default::default() }).unwrap())
        .with_norm_window(NormWindow::new(norms).unwrap());
    optimizer.set_options(StepOptions::default().with_clip(2.0).with_skip_z_score(3.0)).unwrap();
    optimizer
}

/// A run with an outlier at step 9 and an overflow at step 14.
fn train(optimizer: &mut Optimizer, params: &mut [f32], steps: core::ops::Range<usize>) -> Vec<StepOutcome> {
    steps
        .map(|t| {
            let factor = optimizer.scaler().scale() * if t == 9 { 50.0 } else { 1.0 };
            let mut grads: Vec<f32> = wave(t, params.len()).iter().map(|g| g * factor).collect();
            if t == 14 {
                grads[3] = f32::INFINITY;
            }
            optimizer.step(params, &mut grads).unwrap()
        })
        .collect()
}

#[test]
fn a_resumed_run_continues_bit_for_bit_and_weights_alone_do_not() {
    let len = 301;
    let mut whole = optimizer(len);
    let mut whole_params = wave(99, len);
    let outcomes = train(&mut whole, &mut whole_params, 0..25);
    assert!(matches!(outcomes[9], StepOutcome::SkippedOutlier { .. }), "{:?}", outcomes[9]);
    assert!(matches!(outcomes[14], StepOutcome::SkippedOverflow { .. }), "{:?}", outcomes[14]);
    assert_eq!(outcomes.iter().filter(|o| o.stepped()).count(), 23);
    assert_eq!((whole.skips().outliers, whole.skips().overflows), (1, 1));

    for cut in [2, 8, 10, 15] {
        let mut first = optimizer(len);
        let mut params = wave(99, len);
        train(&mut first, &mut params, 0..cut);
        let saved = serde_json::to_string(&first.state()).unwrap();

        let mut second = optimizer(len);
        let mut resumed = params.clone();
        second.load_state(serde_json::from_str(&saved).unwrap()).unwrap();
        assert_eq!(train(&mut second, &mut resumed, cut..25), outcomes[cut..]);
        assert_eq!(bits(&resumed), bits(&whole_params), "cut {cut}");
        assert_eq!(second.state(), whole.state());

        let mut bare = optimizer(len);
        train(&mut bare, &mut params, cut..25);
        assert_ne!(bits(&params), bits(&whole_params), "cut {cut}");
    }
}

#[test]
fn states_that_do_not_fit_are_refused_untouched() {
    let mut optimizer = optimizer(20);
    let mut params = wave(99, 20);
    train(&mut optimizer, &mut params, 0..3);
    let before = optimizer.state();
    let mut bad = before.clone();
    bad.adamw.m.push(0.0);
    assert!(matches!(optimizer.load_state(bad), Err(OptimError::Length { name: "m", .. })));
    let mut bad = before.clone();
    bad.adamw.v[4] = f32::NAN;
    assert!(matches!(optimizer.load_state(bad), Err(OptimError::State { field: "v", .. })));
    let mut bad = before.clone();
    bad.adamw.step += 1;
    bad.scaler = None;
    assert!(matches!(optimizer.load_state(bad), Err(OptimError::ScalerKind { .. })));
    assert_eq!(optimizer.state(), before);
}

#[test]
fn schedule_and_rate_reach_the_step() {
    let groups = ParamGroups::uniform(1).unwrap();
    let config = AdamWConfig::default().with_weight_decay(0.0).unwrap().with_betas(0.0, 0.0).unwrap();
    let config = config.with_lr(0.5).unwrap().with_eps(1e-30).unwrap();
    let schedule = Schedule::new(ScheduleKind::LinearWarmup { warmup: 4 }).unwrap();
    let mut optimizer = Optimizer::new(config, groups).with_schedule(schedule);
    let mut params = [0.0f32];
    let mut seen = Vec::new();
    for t in 0..5 {
        if t == 4 {
            optimizer.set_lr(2.0).unwrap();
        }
        // Without memory and eps the step is lr * sign(g).
        optimizer.step(&mut params, &mut [-4.0]).unwrap();
        seen.push(params[0]);
    }
    assert_eq!(seen, [0.125, 0.375, 0.75, 1.25, 3.25]);
    assert!(optimizer.set_lr(f64::NAN).is_err());
    assert_eq!(optimizer.config().lr(), 2.0);
    let control = StepOptions::default().with_control_clip(1.0);
    assert_eq!(optimizer.set_options(control), Err(OptimError::NoControlSpans { max_norm: 1.0 }));
}

#[test]
fn a_run_that_only_skips_ends() {
    let config = AdamWConfig::default();
    let mut optimizer = Optimizer::new(config, ParamGroups::uniform(2).unwrap()).with_skip_limit(2);
    let mut params = [1.0f32, 2.0];
    for _ in 0..2 {
        optimizer.step(&mut params, &mut [f32::NAN, 0.0]).unwrap();
    }
    let end = optimizer.step(&mut params, &mut [f32::NAN, 0.0]);
    assert_eq!(end, Err(OptimError::TooManySkips { consecutive: 3, limit: 2 }));
    assert_eq!((params, optimizer.adamw_state().step), ([1.0, 2.0], 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the gradients and options: a step that was not taken moved nothing, one that was moved the count
    /// by one, and finite weights stay finite unless the gradient may propagate.
    #[test]
    fn only_a_taken_step_moves_anything(
        steps in prop::collection::vec((0u8..6, 0usize..37, 0.01f64..10.0, any::<bool>(), any::<bool>()), 1..12),
        scaled in any::<bool>(),
    ) {
        let mut rig = if scaled { Rig::scaled(37) } else { Rig::new(37) };
        rig.control = ControlSpans::new(37, vec![StridedSpan::columns(1, 5, 7, 0..3)]).unwrap();
        for (kind, at, threshold, clip, control) in steps {
            let scale = rig.scaler.scale();
            rig.grads = wave(at, 37).iter().map(|g| g * scale).collect();
            match kind {
                0 => rig.grads[at] = f32::NAN,
                1 => rig.grads[at] = f32::INFINITY,
                2 => rig.grads[at] = f32::NEG_INFINITY,
                3 => rig.grads[at] = f32::MAX,
                _ => {}
            }
            rig.options = StepOptions::default().with_skip_above(threshold);
            if clip { rig.options = rig.options.with_clip(threshold / 2.0); }
            if control { rig.options = rig.options.with_control_clip(threshold / 4.0); }
            let before = rig.training_bits();
            let scaler = rig.scaler.clone();
            let outcome = rig.run();
            match outcome {
                Ok(StepOutcome::Stepped { grad_norm, clip }) => {
                    prop_assert!(kind > 2);
                    prop_assert!(grad_norm <= threshold);
                    prop_assert!(f64::from(clip) * grad_norm <= threshold);
                    prop_assert_eq!(rig.state.step, before.3 + 1);
                    prop_assert!(rig.params.iter().all(|p| p.is_finite()));
                }
                Ok(StepOutcome::SkippedSpike { grad_norm, .. }) => {
                    prop_assert!(kind > 2 && grad_norm > threshold);
                    prop_assert_eq!(rig.training_bits(), before);
                }
                Ok(StepOutcome::SkippedOutlier { .. }) => prop_assert!(false, "no z-score is set"),
                Ok(StepOutcome::SkippedNonFinite { .. }) => {
                    prop_assert!(kind <= 2 && !scaled);
                    prop_assert_eq!(rig.training_bits(), before);
                }
                Ok(StepOutcome::SkippedOverflow { loss_scale }) => {
                    prop_assert!(kind <= 2 && scaled);
                    prop_assert_eq!(loss_scale, scaler.scale());
                    prop_assert_eq!(rig.scaler.scale(), 0.5 * loss_scale);
                    prop_assert_eq!(rig.training_bits(), before);
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}
