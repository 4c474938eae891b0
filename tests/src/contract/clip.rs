//! Clips, skips and what a non-finite gradient does.

use super::target::{BATCH, D_MODEL, SEQ_LEN};
use super::{Batch, Snapshot, Target, assert_same_but, snapshot};
use mamba_optim::OptimError;
use mamba_trainer::{
    BackwardMetrics, BackwardOpts, MambaTrainer, NonFinite, StepOpts, TrainerError, Verdict, WeightDtype,
};

pub(super) fn split(t: &mut MambaTrainer, batch: &Batch, opts: BackwardOpts) -> BackwardMetrics {
    t.forward(&batch.input, &mut Batch::temporal()).unwrap();
    t.backward_step(&batch.d_temporal, opts).unwrap()
}

pub(super) fn verdict(t: &mut MambaTrainer) -> Verdict {
    t.last_outcome().unwrap().unwrap().verdict
}

/// Weights, moments, step count and scaler are as they were.
fn nothing_moved(before: &Snapshot, t: &mut MambaTrainer, what: &str) {
    let moving = [&["conv", "ssm", "grads", "outcome", "skips", "step_opts"], counting(t.dtype())].concat();
    assert_same_but(before, &snapshot(t), &moving, what);
}

/// What a spike moves beside the skip counter: to a loss scaler it is a clean step.
pub(super) fn counting(dtype: WeightDtype) -> &'static [&'static str] {
    match dtype {
        WeightDtype::F16 => &["scaler"],
        _ => &[],
    }
}

/// What a NaN in the gradient is called in this precision.
fn non_finite_verdict(target: &Target) -> Verdict {
    match target.dtype {
        WeightDtype::F16 => Verdict::OverflowSkipped,
        _ => Verdict::NonFiniteSkipped,
    }
}

pub fn a_threshold_above_the_norm_changes_no_bit(target: &Target) {
    let (mut plain, mut clipped) = (target.backbone(), target.backbone());
    for i in 0..3 {
        let batch = Batch::new(i);
        let a = split(&mut plain, &batch, BackwardOpts::new());
        let norm = a.grad_norm.unwrap();
        let all = BackwardOpts::new()
            .with_clip_max_norm(norm + 2e-6)
            .with_control_clip_max_norm(norm + 2e-6)
            .with_step_skip_above(norm);
        let b = split(&mut clipped, &batch, all);
        assert_eq!(a, b);
        assert_same_but(&snapshot(&mut plain), &snapshot(&mut clipped), &[], "thresholds above the norm");
    }
}

pub fn clipping_scales_the_whole_gradient(target: &Target) {
    let batch = Batch::new(1);
    let mut t = target.backbone();
    let metrics = split(&mut t, &batch, BackwardOpts::new().with_clip_max_norm(0.125));
    let norm = metrics.grad_norm.unwrap();
    assert!(norm > 1.0, "{norm}");
    let coefficient = (0.125 / (norm + 1e-6)) as f32;
    // After one step m = (1 - β1)·(coefficient·g) in AdamW's own order of operations.
    let grads = t.grad_arena().unwrap().into_owned();
    let m = t.optimizer_state().unwrap().m;
    if target.dtype != WeightDtype::F16 {
        for (g, m) in grads.iter().zip(&m) {
            assert_eq!((1.0f64 - 0.9) as f32 * (g * coefficient), *m);
        }
    }
    let reported: f64 = grads.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    let scale = f64::from(metrics.loss_scale);
    assert!((reported / scale / norm - 1.0).abs() < 1e-12, "the norm before clipping is reported");
}

pub fn control_clip_touches_its_spans_alone(target: &Target) {
    let batch = Batch::new(1);
    let (mut plain, mut clipped) = (target.backbone(), target.backbone());
    split(&mut plain, &batch, BackwardOpts::new());
    split(&mut clipped, &batch, BackwardOpts::new().with_control_clip_max_norm(1e-3));
    let (a, b) = (plain.optimizer_state().unwrap().m, clipped.optimizer_state().unwrap().m);
    let config = Target::backbone_config();
    let (rank, cols) = (config.dt_rank(), config.x_proj_cols());
    let (mut inside, mut norm) = (0, 0.0f64);
    for p in plain.ctx().table.iter() {
        let controlled = |i: usize| match p.name.rsplit_once("layers.").map(|(_, n)| &n[2..]) {
            Some("x_proj") => i % cols < rank,
            Some("dt_proj.weight" | "dt_proj.bias" | "A_log") => true,
            _ => false,
        };
        for (i, (a, b)) in p.span.of(&a).iter().zip(p.span.of(&b)).enumerate() {
            if controlled(i) {
                inside += 1;
                norm += (f64::from(*b) / 0.1).powi(2);
                assert!(a != b || *a == 0.0, "{} {i} was not clipped", p.name);
            } else {
                assert_eq!(a.to_bits(), b.to_bits(), "{} {i} was touched", p.name);
            }
        }
    }
    let (di, ds) = (config.d_inner(), config.d_state);
    assert_eq!(inside, 2 * (di * rank + rank * di + di + di * ds));
    // Clipped to max·norm/(norm + 1e-6).
    assert!((norm.sqrt() / 1e-3 - 1.0).abs() < 1e-2, "{}", norm.sqrt());
}

pub fn a_spike_discards_the_window(target: &Target) {
    let mut t = target.backbone();
    let batch = Batch::new(1);
    t.step(&batch.input, &batch.d_temporal).unwrap();
    let norm = t.last_grad_norm().unwrap().unwrap();
    let before = snapshot(&mut t);
    let skip = BackwardOpts::new().with_step_skip_above(norm * 1e-3);

    let metrics = split(&mut t, &batch, skip);
    assert!(!metrics.optimizer_stepped && !metrics.overflow_skipped && metrics.step == 1);
    assert!(metrics.grad_norm.unwrap() > norm * 1e-3);
    assert_eq!(verdict(&mut t), Verdict::SpikeSkipped);
    nothing_moved(&before, &mut t, "split");

    t.set_step_opts(StepOpts::new().with_step_skip_above(norm * 1e-3).with_clip_max_norm(1.0)).unwrap();
    t.step(&batch.input, &batch.d_temporal).unwrap();
    assert_eq!(verdict(&mut t), Verdict::SpikeSkipped);
    nothing_moved(&before, &mut t, "fused");

    split(&mut t, &batch, BackwardOpts::new().with_accumulate_only(true));
    let metrics = t.apply_step_with(None, Some(norm * 1e-3)).unwrap();
    assert!(!metrics.optimizer_stepped && t.window().is_none());
    nothing_moved(&before, &mut t, "window");

    // Exactly at the threshold is no spike.
    t.reset_state().unwrap();
    split(&mut t, &batch, BackwardOpts::new().with_accumulate_only(true));
    let grads = t.grad_arena().unwrap().into_owned();
    t.apply_step_with(None, Some(f64::MIN_POSITIVE)).unwrap();
    let exact = t.last_grad_norm().unwrap().unwrap();
    t.reset_state().unwrap();
    split(&mut t, &batch, BackwardOpts::new().with_accumulate_only(true));
    t.upload_grad_arena(&grads).unwrap();
    assert!(t.apply_step_with(None, Some(exact)).unwrap().optimizer_stepped);
}

pub fn a_non_finite_gradient_discards_the_window(target: &Target) {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for opts in [
            StepOpts::new(),
            StepOpts::new().with_clip_max_norm(1.0),
            StepOpts::new().with_control_clip_max_norm(1.0),
            StepOpts::new().with_step_skip_above(1e9),
            // A skip threshold always includes NaN.
            StepOpts::new().with_step_skip_above(f64::MAX).with_non_finite(NonFinite::Propagate),
        ] {
            let mut t = target.backbone();
            let good = Batch::new(1);
            t.step(&good.input, &good.d_temporal).unwrap();
            let before = snapshot(&mut t);
            let bad = Batch::poisoned(2, value);
            let metrics = split(&mut t, &bad, opts.into());
            let what = format!("{value} with {opts:?}");
            assert!(!metrics.optimizer_stepped && metrics.step == 1, "{what}");
            assert_eq!(verdict(&mut t), non_finite_verdict(target), "{what}");
            let moving = if target.dtype == WeightDtype::F16 { &["scaler"][..] } else { &[] };
            let moving = [&["conv", "ssm", "grads", "outcome", "skips", "step_opts"], moving].concat();
            assert_same_but(&before, &snapshot(&mut t), &moving, &what);
            if target.dtype != WeightDtype::F16 {
                assert!(!metrics.grad_norm.unwrap().is_finite(), "{what}");
            }
            // The next clean step is taken.
            t.reset_state().unwrap();
            assert!(split(&mut t, &good, BackwardOpts::new()).optimizer_stepped, "{what}");
        }
    }
}

pub fn propagation_shows_nan_in_the_weights(target: &Target) {
    if target.dtype == WeightDtype::F16 {
        return; // an overflow there, whatever the policy
    }
    let mut t = target.backbone();
    let opts = BackwardOpts::new().with_non_finite(NonFinite::Propagate).with_clip_max_norm(1.0);
    let metrics = split(&mut t, &Batch::poisoned(1, f32::NAN), opts);
    assert!(metrics.optimizer_stepped && metrics.grad_norm.unwrap().is_nan());
    assert!(t.snapshot_master().unwrap().check_finite().is_err());
}

pub fn a_nan_window_can_be_discarded(target: &Target) {
    let (mut t, mut clean) = (target.backbone(), target.backbone());
    let accumulate = BackwardOpts::new().with_accumulate_only(true);
    split(&mut t, &Batch::new(1), accumulate);
    split(&mut t, &Batch::poisoned(2, f32::NAN), accumulate);
    let found = t.first_non_finite_gradient().unwrap().unwrap();
    assert_eq!(found.tensor, "input_proj.weight");
    assert!(found.index == 0 && found.value.is_nan(), "{found:?}");
    t.discard_window().unwrap();
    t.reset_state().unwrap();
    for t in [&mut t, &mut clean] {
        split(t, &Batch::new(3), BackwardOpts::new());
        assert_eq!(t.first_non_finite_gradient().unwrap(), None);
    }
    assert_same_but(&snapshot(&mut t), &snapshot(&mut clean), &[], "after a discarded NaN window");
}

pub fn skips_inside_replay_leave_bits_alone(target: &Target) {
    let mut t = target.backbone();
    let good = Batch::new(1);
    t.step(&good.input, &good.d_temporal).unwrap();
    t.capture_graph().unwrap();
    let before = snapshot(&mut t);
    let zero = vec![0.0; BATCH * SEQ_LEN * D_MODEL];
    for value in [f32::NAN, f32::INFINITY] {
        let bad = Batch::poisoned(2, value);
        assert!(t.step(&bad.input, &bad.d_temporal).unwrap().graph_replayed);
        assert_eq!(verdict(&mut t), non_finite_verdict(target));
        let moving = if target.dtype == WeightDtype::F16 { &["scaler"][..] } else { &[] };
        let moving = [&["conv", "ssm", "grads", "outcome", "skips"], moving].concat();
        assert_same_but(&before, &snapshot(&mut t), &moving, "replay of a bad step");
    }
    t.reset_state().unwrap();
    t.step(&good.input, &zero).unwrap();
    assert_eq!((verdict(&mut t), t.optimizer_state().unwrap().step), (Verdict::Applied, 2));
}

pub fn too_many_skips_in_a_row_are_an_error(target: &Target) {
    let mut t = target.backbone_builder().skip_limit(2).build().unwrap();
    let (good, tiny) = (Batch::new(1), BackwardOpts::new().with_step_skip_above(1e-9));
    for _ in 0..2 {
        split(&mut t, &good, tiny);
        split(&mut t, &good, tiny);
        assert_eq!(t.skips().unwrap().consecutive, 2);
        // A step that is taken ends the row.
        split(&mut t, &good, BackwardOpts::new());
        assert_eq!(t.skips().unwrap().consecutive, 0);
    }
    let state = t.training_state(b"").unwrap();
    split(&mut t, &good, tiny);
    split(&mut t, &good, tiny);
    let saved = t.training_state(b"").unwrap();
    let third = |t: &mut MambaTrainer| {
        t.forward(&good.input, &mut Batch::temporal()).unwrap();
        let before = snapshot(t);
        let error = t.backward_step(&good.d_temporal, tiny).unwrap_err();
        let too_many = OptimError::TooManySkips { consecutive: 3, limit: 2 };
        assert!(matches!(&error, TrainerError::Optim(e) if *e == too_many), "{error}");
        let moving = [&["grads", "outcome", "skips", "pending"], counting(t.dtype())].concat();
        assert_same_but(&before, &snapshot(t), &moving, "one too many");
    };
    third(&mut t);
    assert_eq!((t.skips().unwrap().spikes, t.skips().unwrap().non_finite), (7, 0));
    // The count belongs to the state: a resumed run ends where the unbroken one ends.
    let mut resumed = target.backbone_builder().skip_limit(2).build().unwrap();
    resumed.load_training_state(&saved).unwrap();
    third(&mut resumed);
    t.load_training_state(&state).unwrap();
    split(&mut t, &good, tiny);
}
