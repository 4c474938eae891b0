//! Order of calls, arguments and errors. An error leaves every bit as it was.

use super::target::{BATCH, D_MODEL, INPUT_DIM, SEQ_LEN};
use super::{Batch, Target, assert_same, assert_same_but, snapshot};
use mamba_optim::OptimError;
use mamba_trainer::{
    AdamWState, BackwardOpts, MambaTrainer, RecurrentState, Result, ScalerState, StepOpts, TrainerError,
    WeightDtype,
};

const BAD: [f64; 5] = [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

fn accumulate() -> BackwardOpts {
    BackwardOpts::new().with_accumulate_only(true)
}

fn forward(t: &mut MambaTrainer, seed: u64) -> Result<()> {
    t.forward(&Batch::new(seed).input, &mut Batch::temporal())
}

fn backward(t: &mut MambaTrainer, seed: u64, opts: BackwardOpts) -> Result<()> {
    t.backward_step(&Batch::new(seed).d_temporal, opts).map(|_| ())
}

fn step(t: &mut MambaTrainer, seed: u64) -> Result<()> {
    let batch = Batch::new(seed);
    t.step(&batch.input, &batch.d_temporal).map(|_| ())
}

/// A trainer with a past: two steps taken.
fn warm(target: &Target) -> MambaTrainer {
    let mut t = target.backbone();
    step(&mut t, 1).unwrap();
    step(&mut t, 2).unwrap();
    t
}

/// Runs a call that must fail without a trace.
fn fails(
    t: &mut MambaTrainer,
    what: &str,
    call: impl FnOnce(&mut MambaTrainer) -> Result<()>,
) -> TrainerError {
    let before = snapshot(t);
    let error = call(t).expect_err(what);
    assert_same(&before, &snapshot(t), what);
    error
}

fn cancels(t: &mut MambaTrainer, what: &str) {
    assert!(!t.has_pending_forward(), "{what}");
    let error = fails(t, what, |t| backward(t, 3, BackwardOpts::new()));
    assert!(matches!(error, TrainerError::NoPendingForward { call: "backward_step" }), "{what}: {error}");
}

pub fn one_forward_feeds_one_backward(target: &Target) {
    let mut t = target.backbone();
    cancels(&mut t, "no forward yet");
    forward(&mut t, 1).unwrap();
    backward(&mut t, 1, BackwardOpts::new()).unwrap();
    cancels(&mut t, "second backward");
    forward(&mut t, 2).unwrap();
    backward(&mut t, 2, accumulate()).unwrap();
    cancels(&mut t, "second backward of a window");
    // The newest forward is the one that counts.
    let mut twice = target.backbone();
    let mut once = target.backbone();
    forward(&mut twice, 1).unwrap();
    forward(&mut twice, 2).unwrap();
    forward(&mut once, 1).unwrap();
    let state = once.recurrent_state().unwrap();
    once.reset_state().unwrap();
    once.load_recurrent_state(&state).unwrap();
    forward(&mut once, 2).unwrap();
    for t in [&mut twice, &mut once] {
        backward(t, 2, BackwardOpts::new()).unwrap();
    }
    assert_same(&snapshot(&mut twice), &snapshot(&mut once), "forward repeated");
}

pub fn what_cancels_a_pending_forward(target: &Target) {
    let mut t = warm(target);
    forward(&mut t, 1).unwrap();
    step(&mut t, 2).unwrap();
    cancels(&mut t, "step");

    forward(&mut t, 1).unwrap();
    t.reset_state().unwrap();
    cancels(&mut t, "reset_state");

    forward(&mut t, 1).unwrap();
    let before = snapshot(&mut t);
    t.forward(&[0.0; 3], &mut Batch::temporal()).unwrap_err();
    assert_same_but(&before, &snapshot(&mut t), &["pending"], "failed forward");
    cancels(&mut t, "a failed forward");

    forward(&mut t, 1).unwrap();
    t.forward(&Batch::new(1).input, &mut [0.0; 3]).unwrap_err();
    cancels(&mut t, "a forward without room for its output");

    forward(&mut t, 1).unwrap();
    let state = t.recurrent_state().unwrap();
    t.load_recurrent_state(&state).unwrap();
    cancels(&mut t, "load_recurrent_state");

    forward(&mut t, 1).unwrap();
    let state = t.training_state(&[]).unwrap();
    assert!(t.has_pending_forward());
    t.load_training_state(&state).unwrap();
    cancels(&mut t, "load_training_state");

    // The weights that it was made with are gone.
    forward(&mut t, 1).unwrap();
    backward(&mut t, 1, BackwardOpts::new().with_accumulate_only(true)).unwrap();
    forward(&mut t, 2).unwrap();
    t.apply_step(None).unwrap();
    cancels(&mut t, "apply_step");

    // A failed backward does not consume it.
    forward(&mut t, 1).unwrap();
    fails(&mut t, "short gradient", |t| t.backward_step(&[0.0], BackwardOpts::new()).map(|_| ()));
    backward(&mut t, 1, BackwardOpts::new()).unwrap();
    // Nor do calls that have nothing to do with it.
    forward(&mut t, 1).unwrap();
    t.set_lr(1e-4).unwrap();
    t.set_step_opts(StepOpts::new().with_clip_max_norm(1.0)).unwrap();
    t.set_reference_no_decay(false).unwrap();
    backward(&mut t, 1, BackwardOpts::new()).unwrap();
}

pub fn windows_open_accumulate_and_close(target: &Target) {
    let mut t = warm(target);
    assert_eq!(t.window(), None);
    let before = snapshot(&mut t);
    for i in 1..=3 {
        forward(&mut t, i).unwrap();
        let metrics = t.backward_step(&Batch::new(i).d_temporal, accumulate()).unwrap();
        assert_eq!(t.window(), Some(i));
        assert!(!metrics.optimizer_stepped && !metrics.overflow_skipped && metrics.step == 2);
        assert_eq!(metrics.grad_norm, None);
        let moved = ["grads", "conv", "ssm", "window", "input gradient"];
        assert_same_but(&before, &snapshot(&mut t), &moved, "an accumulating call");
    }
    let metrics = t.apply_step(None).unwrap();
    assert!(metrics.optimizer_stepped && metrics.step == 3 && t.window().is_none());
    let outcome = t.last_outcome().unwrap().unwrap();
    assert_eq!((outcome.step, outcome.grad_norm), (3, metrics.grad_norm));
    assert_eq!(t.last_grad_norm().unwrap(), metrics.grad_norm);

    // Two equal micro-batches give twice the gradient of one; a discarded window gives nothing.
    let mut grads = Vec::new();
    for n in [1, 2] {
        for _ in 0..n {
            t.reset_state().unwrap();
            forward(&mut t, 5).unwrap();
            backward(&mut t, 5, accumulate()).unwrap();
        }
        grads.push(t.grad_arena().unwrap().into_owned());
        t.discard_window().unwrap();
        assert_eq!(t.window(), None);
    }
    let norm = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let off = grads[0].iter().zip(&grads[1]).map(|(a, b)| 2.0 * a - b).collect::<Vec<_>>();
    // Two additions of equal parts differ from one doubling by rounding only; measured 2.1e-8 of the norm in f32.
    let bound = if target.dtype == WeightDtype::F32 { 2e-7 } else { 1e-2 };
    assert!(norm(&off) <= bound * norm(&grads[1]), "{:e} of {:e}", norm(&off), norm(&grads[1]));
}

pub fn an_open_window_blocks_what_would_break_it(target: &Target) {
    let mut t = warm(target);
    let state = t.training_state(&[]).unwrap();
    let optimizer = t.optimizer_state().unwrap();
    let scaler = t.scaler_state().unwrap();
    forward(&mut t, 1).unwrap();
    backward(&mut t, 1, accumulate()).unwrap();
    type Call<'a> = Box<dyn FnOnce(&mut MambaTrainer) -> Result<()> + 'a>;
    let calls: Vec<(&str, Call<'_>)> = vec![
        ("step", Box::new(|t| step(t, 1))),
        ("capture_graph", Box::new(|t| t.capture_graph())),
        ("load_optimizer_state", Box::new(|t| t.load_optimizer_state(&optimizer))),
        ("load_scaler_state", Box::new(|t| t.load_scaler_state(scaler))),
        ("training_state", Box::new(|t| t.training_state(&[]).map(|_| ()))),
        ("load_training_state", Box::new(|t| t.load_training_state(&state))),
        ("load_state", Box::new(|t| t.load_state("no such file").map(|_| ()))),
    ];
    for (name, run) in calls {
        let error = fails(&mut t, name, run);
        let ok = matches!(error, TrainerError::WindowOpen { call, micro_batches: 1 } if call == name);
        assert!(ok, "{name}: {error}");
        assert!(error.to_string().contains("discard_window"), "{error}");
    }
    t.discard_window().unwrap();
    for (name, error) in [
        ("discard_window", fails(&mut t, "discard_window", |t| t.discard_window())),
        ("apply_step", fails(&mut t, "apply_step", |t| t.apply_step(None).map(|_| ()))),
        ("upload_grad_arena", fails(&mut t, "upload", |t| t.upload_grad_arena(&[]))),
    ] {
        assert!(matches!(error, TrainerError::NoWindow { call } if call == name), "{name}: {error}");
    }
    step(&mut t, 1).unwrap();
}

pub fn closing_options_do_not_go_with_accumulation(target: &Target) {
    let mut t = warm(target);
    forward(&mut t, 1).unwrap();
    for (name, opts) in [
        ("clip_max_norm", accumulate().with_clip_max_norm(1.0)),
        ("step_skip_above", accumulate().with_step_skip_above(1.0)),
        ("skip_z_score", accumulate().with_skip_z_score(1.0)),
        ("control_clip_max_norm", accumulate().with_control_clip_max_norm(1.0)),
    ] {
        let error = fails(&mut t, name, |t| backward(t, 1, opts));
        let ok = matches!(error, TrainerError::OptionWhileAccumulating { option } if option == name);
        assert!(ok, "{name}: {error}");
    }
    backward(&mut t, 1, accumulate()).unwrap();
}

pub fn thresholds_are_checked_everywhere(target: &Target) {
    let mut t = warm(target);
    forward(&mut t, 1).unwrap();
    backward(&mut t, 1, accumulate()).unwrap();
    forward(&mut t, 2).unwrap();
    let setting = |error: TrainerError| match error {
        TrainerError::Setting { name, .. } => name,
        other => panic!("{other}"),
    };
    for bad in BAD {
        for (name, opts) in [
            ("clip_max_norm", StepOpts::new().with_clip_max_norm(bad)),
            ("step_skip_above", StepOpts::new().with_step_skip_above(bad)),
            ("skip_z_score", StepOpts::new().with_skip_z_score(bad)),
            ("control_clip_max_norm", StepOpts::new().with_control_clip_max_norm(bad)),
        ] {
            assert_eq!(setting(fails(&mut t, name, |t| t.set_step_opts(opts))), name);
            assert_eq!(setting(fails(&mut t, name, |t| backward(t, 2, opts.into()))), name);
            assert_eq!(setting(fails(&mut t, name, |t| t.apply_step_opts(&opts).map(|_| ()))), name);
        }
        let clip = fails(&mut t, "clip", |t| t.apply_step(Some(bad)).map(|_| ()));
        assert_eq!(setting(clip), "clip_max_norm");
        let skip = fails(&mut t, "skip", |t| t.apply_step_with(None, Some(bad)).map(|_| ()));
        assert_eq!(setting(skip), "step_skip_above");
    }
    // The smallest and the largest of the allowed ones.
    t.set_step_opts(StepOpts::new().with_clip_max_norm(f64::MIN_POSITIVE)).unwrap();
    t.apply_step_with(Some(f64::MAX), Some(f64::MAX)).unwrap();
}

pub fn learning_rates_are_checked(target: &Target) {
    let mut t = warm(target);
    for bad in BAD {
        let error = fails(&mut t, "lr", |t| t.set_lr(bad));
        assert!(matches!(error, TrainerError::Optim(OptimError::Setting { name: "lr", .. })), "{error}");
    }
    t.set_lr(0.5).unwrap();
    assert_eq!(t.lr(), 0.5);
    // The rate takes effect: twice the rate, twice the move (without decay, from the same state).
    let moved = |lr: f64| {
        let mut t = target.backbone_builder().weight_decay(0.0).build().unwrap();
        let before = t.snapshot_master().unwrap();
        t.set_lr(lr).unwrap();
        step(&mut t, 1).unwrap();
        let after = t.snapshot_master().unwrap();
        let (a, b) = (after.get("layers.1.D").unwrap(), before.get("layers.1.D").unwrap());
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).abs()).sum::<f64>()
    };
    let (one, two) = (moved(0.0625), moved(0.125));
    assert!(one > 0.0 && (two / one - 2.0).abs() < 1e-5, "{one} {two}");
}

pub fn lengths_are_checked_everywhere(target: &Target) {
    let mut t = warm(target);
    let batch = Batch::new(1);
    let mask = vec![0u8; BATCH * SEQ_LEN];
    let short = |x: &[f32]| x[1..].to_vec();
    let long = |x: &[f32]| [x, &[0.0]].concat();
    for input in [short(&batch.input), long(&batch.input), vec![]] {
        let error = fails(&mut t, "input", |t| t.step(&input, &batch.d_temporal).map(|_| ()));
        assert!(error.to_string().contains("`input`"), "{error}");
        let error = fails(&mut t, "input", |t| t.forward(&input, &mut Batch::temporal()));
        assert!(error.to_string().contains(&(BATCH * SEQ_LEN * INPUT_DIM).to_string()), "{error}");
    }
    forward(&mut t, 1).unwrap();
    for d in [short(&batch.d_temporal), long(&batch.d_temporal), vec![]] {
        for error in [
            fails(&mut t, "d_temporal", |t| t.step(&batch.input, &d).map(|_| ())),
            fails(&mut t, "d_temporal", |t| t.backward_step(&d, BackwardOpts::new()).map(|_| ())),
        ] {
            let ok = matches!(error, TrainerError::Length { name: "d_temporal", expected, .. }
                if expected == BATCH * SEQ_LEN * D_MODEL);
            assert!(ok, "{error}");
        }
    }
    for bad in [&mask[1..], &[]] {
        let error =
            fails(&mut t, "reset", |t| t.step_packed(&batch.input, Some(bad), &batch.d_temporal).map(|_| ()));
        assert!(matches!(error, TrainerError::Length { name: "reset", .. }), "{error}");
    }
    let mut odd = mask.clone();
    odd[3] = 2;
    let error =
        fails(&mut t, "reset", |t| t.step_packed(&batch.input, Some(&odd), &batch.d_temporal).map(|_| ()));
    assert!(matches!(error, TrainerError::Value { name: "reset", index: 3, .. }), "{error}");
}

pub fn graph_rules(target: &Target) {
    let mut t = target.backbone();
    let error = fails(&mut t, "cold capture", |t| t.capture_graph());
    assert!(matches!(error, TrainerError::GraphNeedsEagerStep), "{error}");
    // A split step is no fused step.
    forward(&mut t, 1).unwrap();
    backward(&mut t, 1, BackwardOpts::new()).unwrap();
    fails(&mut t, "capture after a split step", |t| t.capture_graph());
    t.drop_graph();
    step(&mut t, 1).unwrap();
    let (optimizer, scaler) = (t.optimizer_state().unwrap(), t.scaler_state().unwrap());
    let state = t.training_state(&[]).unwrap();
    t.capture_graph().unwrap();
    assert!(t.has_graph());
    for (name, error) in [
        ("set_reference_no_decay", fails(&mut t, "decay", |t| t.set_reference_no_decay(false))),
        ("load_optimizer_state", fails(&mut t, "optimizer", |t| t.load_optimizer_state(&optimizer))),
        ("load_scaler_state", fails(&mut t, "scaler", |t| t.load_scaler_state(scaler))),
        ("load_training_state", fails(&mut t, "state", |t| t.load_training_state(&state))),
        ("load_state", fails(&mut t, "file", |t| t.load_state("no such file").map(|_| ()))),
    ] {
        assert!(matches!(error, TrainerError::UnderGraph { call } if call == name), "{name}: {error}");
        assert!(error.to_string().contains("drop_graph"), "{error}");
    }
    // What works under a graph.
    t.set_lr(1e-4).unwrap();
    t.set_step_opts(StepOpts::new().with_clip_max_norm(1.0)).unwrap();
    t.reset_state().unwrap();
    let recurrence = t.recurrent_state().unwrap();
    t.load_recurrent_state(&recurrence).unwrap();
    t.training_state(&[]).unwrap();
    t.capture_graph().unwrap();
    let batch = Batch::new(2);
    assert!(t.step(&batch.input, &batch.d_temporal).unwrap().graph_replayed);
    // A change of mode between the halves of a step.
    forward(&mut t, 3).unwrap();
    t.drop_graph();
    let error = fails(&mut t, "dropped in between", |t| backward(t, 3, BackwardOpts::new()));
    assert!(matches!(error, TrainerError::StaleForward), "{error}");
    forward(&mut t, 3).unwrap();
    t.capture_graph().unwrap();
    let error = fails(&mut t, "captured in between", |t| backward(t, 3, BackwardOpts::new()));
    assert!(matches!(error, TrainerError::StaleForward), "{error}");
    forward(&mut t, 3).unwrap();
    backward(&mut t, 3, BackwardOpts::new()).unwrap();
    t.drop_graph();
    assert!(!t.has_graph());
    assert!(!t.step(&batch.input, &batch.d_temporal).unwrap().graph_replayed);
    t.load_training_state(&state).unwrap();
}

pub fn capture_executes_nothing(target: &Target) {
    let mut t = warm(target);
    let before = snapshot(&mut t);
    for _ in 0..3 {
        t.capture_graph().unwrap();
        assert_same_but(&before, &snapshot(&mut t), &["graph"], "capture");
        t.drop_graph();
        assert_same(&before, &snapshot(&mut t), "drop");
    }
}

pub fn states_that_do_not_fit_are_refused(target: &Target) {
    let mut t = warm(target);
    let good = t.optimizer_state().unwrap();
    let with = |f: &dyn Fn(&mut AdamWState)| {
        let mut state = good.clone();
        f(&mut state);
        state
    };
    for (what, state) in [
        ("short m", with(&|s| s.m.truncate(1))),
        ("long v", with(&|s| s.v.push(0.0))),
        ("NaN in m", with(&|s| s.m[7] = f32::NAN)),
        ("Inf in v", with(&|s| s.v[7] = f32::INFINITY)),
        ("negative v", with(&|s| s.v[0] = -1e-30)),
        ("last step", with(&|s| s.step = u64::MAX)),
    ] {
        let error = fails(&mut t, what, |t| t.load_optimizer_state(&state));
        assert!(matches!(error, TrainerError::Optim(_)), "{what}: {error}");
    }
    let recurrence = t.recurrent_state().unwrap();
    for (what, bad) in [
        ("conv", RecurrentState { conv: recurrence.conv[1..].to_vec(), ..recurrence.clone() }),
        ("ssm", RecurrentState { ssm: vec![], ..recurrence.clone() }),
        ("ssm", RecurrentState { ssm: vec![f32::NAN; recurrence.ssm.len()], ..recurrence.clone() }),
    ] {
        let error = fails(&mut t, what, |t| t.load_recurrent_state(&bad));
        assert!(error.to_string().contains(what), "{error}");
    }
    let other_kind = match target.dtype {
        WeightDtype::F16 => None,
        _ => Some(ScalerState { scale: 1024.0, growth_tracker: 3 }),
    };
    let error = fails(&mut t, "scaler", |t| t.load_scaler_state(other_kind));
    assert!(matches!(error, TrainerError::Optim(OptimError::ScalerKind { .. })), "{error}");
    // What was loaded is what is there.
    let mut state = good.clone();
    state.step = 41;
    state.m[0] = 0.25;
    t.load_optimizer_state(&state).unwrap();
    assert!(t.optimizer_state().unwrap() == state);
    assert_eq!(t.last_outcome().unwrap(), None);
    step(&mut t, 3).unwrap();
    assert_eq!(t.optimizer_state().unwrap().step, 42);
}

pub fn input_gradient_only_on_request(target: &Target) {
    let mut without = warm(target);
    let error = fails(&mut without, "not asked for", |t| t.input_gradient().map(|_| ()));
    assert!(matches!(error, TrainerError::NoInputGradient { .. }), "{error}");
    let mut t = target.backbone_builder().input_gradient(true).build().unwrap();
    fails(&mut t, "no backward yet", |t| t.input_gradient().map(|_| ()));
    step(&mut t, 1).unwrap();
    t.input_gradient().unwrap();
}

pub fn upload_replaces_the_open_window(target: &Target) {
    let (mut a, mut b) = (warm(target), warm(target));
    for t in [&mut a, &mut b] {
        forward(t, 1).unwrap();
        backward(t, 1, accumulate()).unwrap();
    }
    let own = a.grad_arena().unwrap().into_owned();
    let error = fails(&mut a, "short", |t| t.upload_grad_arena(&own[1..]));
    assert!(matches!(error, TrainerError::Length { name: "grads", .. }), "{error}");
    a.upload_grad_arena(&own).unwrap();
    assert_same(&snapshot(&mut a), &snapshot(&mut b), "its own arena put back");
    // Values in the gaps between tensors are not gradients.
    let table = a.ctx().table.clone();
    let mut noisy = own.clone();
    let mut inside = vec![false; own.len()];
    table.iter().for_each(|p| p.span.of_mut(&mut inside).fill(true));
    noisy.iter_mut().zip(&inside).filter(|(_, i)| !**i).for_each(|(g, _)| *g = f32::NAN);
    assert!(noisy.iter().any(|g| g.is_nan()));
    a.upload_grad_arena(&noisy).unwrap();
    let doubled: Vec<f32> = own.iter().map(|g| 2.0 * g).collect();
    assert_same(&snapshot(&mut a), &snapshot(&mut b), "noise in the gaps");
    a.upload_grad_arena(&doubled).unwrap();
    let (x, y) = (a.apply_step(None).unwrap(), b.apply_step(None).unwrap());
    assert_eq!(x.grad_norm.unwrap(), 2.0 * y.grad_norm.unwrap());
    assert!(snapshot(&mut a).parts != snapshot(&mut b).parts);
}

pub fn no_decay_groups_switch(target: &Target) {
    let zero = vec![0.0; BATCH * SEQ_LEN * D_MODEL];
    let input = Batch::new(1).input;
    for (reference, spared) in [(true, true), (false, false)] {
        let mut t = target.backbone_builder().lr(0.5).weight_decay(0.5).build().unwrap();
        assert!(t.reference_no_decay());
        t.set_reference_no_decay(reference).unwrap();
        let before = t.snapshot_master().unwrap();
        t.step(&input, &zero).unwrap();
        let after = t.snapshot_master().unwrap();
        for p in before.table().iter() {
            // Without a gradient AdamW only decays: p ← (1 - 0.5·0.5)·p.
            let factor = if p.decay || !spared { 0.75 } else { 1.0 };
            let (a, b) = (p.span.of(before.arena()), p.span.of(after.arena()));
            assert!(a.iter().zip(b).all(|(a, b)| a * factor == *b), "{} with {reference}", p.name);
        }
    }
}
