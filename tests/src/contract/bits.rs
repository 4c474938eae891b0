//! The same inputs give the same bits, whichever way they go.

use super::target::{BATCH, D_MODEL, INPUT_DIM, SEQ_LEN};
use super::{Batch, Target, assert_same, assert_same_but, snapshot};
use mamba_trainer::{BackwardOpts, MambaTrainer, StepOpts};

/// Thresholds that change from step to step, so that clips and skips both happen and do not happen.
fn opts_of(i: u64) -> StepOpts {
    match i % 5 {
        0 => StepOpts::new(),
        1 => StepOpts::new().with_clip_max_norm(0.5),
        2 => StepOpts::new().with_control_clip_max_norm(0.01).with_clip_max_norm(1e6),
        3 => StepOpts::new().with_step_skip_above(1e-6),
        _ => StepOpts::new().with_step_skip_above(1e6).with_clip_max_norm(2.0),
    }
}

fn split_step(t: &mut MambaTrainer, batch: &Batch, opts: BackwardOpts) {
    t.forward(&batch.input, &mut Batch::temporal()).unwrap();
    t.backward_step(&batch.d_temporal, opts).unwrap();
}

pub fn split_equals_fused(target: &Target) {
    let (mut fused, mut split) = (target.backbone(), target.backbone());
    for i in 0..10 {
        let batch = Batch::new(i);
        fused.set_step_opts(opts_of(i)).unwrap();
        fused.step(&batch.input, &batch.d_temporal).unwrap();
        split_step(&mut split, &batch, opts_of(i).into());
        assert_same_but(&snapshot(&mut fused), &snapshot(&mut split), &["step_opts"], &format!("step {i}"));
    }
    assert_eq!(fused.optimizer_state().unwrap().step, 8);
}

pub fn graph_equals_eager_while_everything_changes(target: &Target) {
    let (mut eager, mut graph) = (target.backbone(), target.backbone());
    for i in 0..12 {
        let batch = Batch::new(i);
        for t in [&mut eager, &mut graph] {
            t.set_step_opts(opts_of(i)).unwrap();
            t.set_lr(1e-3 / (i + 1) as f64).unwrap();
        }
        let a = eager.step(&batch.input, &batch.d_temporal).unwrap();
        let b = graph.step(&batch.input, &batch.d_temporal).unwrap();
        assert!(!a.graph_replayed);
        assert_eq!(b.graph_replayed, !(i == 0 || i == 7), "step {i}");
        assert_same_but(&snapshot(&mut eager), &snapshot(&mut graph), &["graph"], &format!("step {i}"));
        match i {
            0 | 7 => graph.capture_graph().unwrap(),
            6 => graph.drop_graph(),
            // Split calls between replays run on the same buffers.
            9 => {
                let batch = Batch::new(100);
                split_step(&mut eager, &batch, BackwardOpts::new());
                split_step(&mut graph, &batch, BackwardOpts::new());
            }
            _ => {}
        }
    }
}

pub fn one_applying_call_equals_accumulate_and_apply(target: &Target) {
    let (mut one, mut two) = (target.backbone(), target.backbone());
    let accumulate = BackwardOpts::new().with_accumulate_only(true);
    for (i, micro_batches) in [(0, 1), (1, 2), (2, 4)] {
        for j in 0..micro_batches {
            let batch = Batch::new(10 * i + j);
            let last = j + 1 == micro_batches;
            let closing = BackwardOpts::new().with_clip_max_norm(0.7).with_step_skip_above(1e6);
            split_step(&mut one, &batch, if last { closing } else { accumulate });
            split_step(&mut two, &batch, accumulate);
        }
        let metrics = two.apply_step_with(Some(0.7), Some(1e6)).unwrap();
        assert!(metrics.optimizer_stepped && metrics.grad_norm.is_some());
        assert_same(&snapshot(&mut one), &snapshot(&mut two), &format!("window {i}"));
    }
}

pub fn resume_equals_unbroken_and_weights_alone_do_not(target: &Target) {
    let mut unbroken = target.backbone();
    let run = |t: &mut MambaTrainer, steps: std::ops::Range<u64>| {
        for i in steps {
            t.set_lr(1e-3 / (i + 1) as f64).unwrap();
            let batch = Batch::new(i);
            t.step(&batch.input, &batch.d_temporal).unwrap();
        }
    };
    run(&mut unbroken, 0..4);
    let state = unbroken.training_state(b"position 4").unwrap();
    let weights = unbroken.snapshot_master().unwrap();
    run(&mut unbroken, 4..8);
    let want = snapshot(&mut unbroken);

    let mut resumed = target.backbone();
    resumed.load_training_state(&state).unwrap();
    run(&mut resumed, 4..8);
    assert_same_but(&want, &snapshot(&mut resumed), &["outcome"], "resumed");

    // Every part of the state matters: leave one out, and the run goes another way.
    let mut weights_only = target.builder_of(weights.clone()).build().unwrap();
    run(&mut weights_only, 4..8);
    assert!(want.parts != snapshot(&mut weights_only).parts);
    let mut without_recurrence = target.builder_of(weights.clone()).build().unwrap();
    without_recurrence.load_optimizer_state(&state.optimizer).unwrap();
    run(&mut without_recurrence, 4..8);
    assert!(want.parts != snapshot(&mut without_recurrence).parts);
    let mut without_moments = target.builder_of(weights.clone()).build().unwrap();
    without_moments.load_recurrent_state(&state.recurrence).unwrap();
    run(&mut without_moments, 4..8);
    assert!(want.parts != snapshot(&mut without_moments).parts);

    let mut by_parts = target.builder_of(weights).build().unwrap();
    by_parts.load_optimizer_state(&state.optimizer).unwrap();
    by_parts.load_recurrent_state(&state.recurrence).unwrap();
    by_parts.load_scaler_state(state.scaler).unwrap();
    by_parts.load_norm_history(&state.norms).unwrap();
    run(&mut by_parts, 4..8);
    assert_same_but(&want, &snapshot(&mut by_parts), &["outcome"], "loaded by parts");
}

pub fn repeated_runs_are_equal(target: &Target) {
    let run = || {
        let mut t = target.backbone_builder().step_opts(opts_of(1)).build().unwrap();
        for i in 0..5 {
            let batch = Batch::new(i);
            t.step(&batch.input, &batch.d_temporal).unwrap();
        }
        snapshot(&mut t)
    };
    assert_same(&run(), &run(), "second run");
}

/// Trainers on threads of their own, and one that moves from thread to thread.
pub fn trainers_on_threads_do_not_disturb_each_other(target: &Target) {
    let run = |mut t: MambaTrainer, steps: std::ops::Range<u64>, seed: u64| {
        for i in steps {
            let batch = Batch::new(1000 * seed + i);
            t.step(&batch.input, &batch.d_temporal).unwrap();
            if i == 1 {
                t.capture_graph().unwrap();
            }
        }
        t
    };
    let mut alone: Vec<_> = (0..3).map(|seed| run(target.backbone(), 0..12, seed)).collect();
    let mut together: Vec<_> = std::thread::scope(|s| {
        let first: Vec<_> = (0..3).map(|seed| s.spawn(move || run(target.backbone(), 0..6, seed))).collect();
        let moved = first.into_iter().map(|thread| thread.join().unwrap());
        let rest: Vec<_> =
            moved.enumerate().map(|(seed, t)| s.spawn(move || run(t, 6..12, seed as u64))).collect();
        rest.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (a, b) in alone.iter_mut().zip(&mut together) {
        assert_same(&snapshot(a), &snapshot(b), "on a thread of its own");
    }
}

pub fn absent_mask_equals_zero_mask(target: &Target) {
    let (mut absent, mut zeros) = (target.backbone(), target.backbone());
    let mask = vec![0u8; BATCH * SEQ_LEN];
    for i in 0..4 {
        let batch = Batch::new(i);
        absent.step(&batch.input, &batch.d_temporal).unwrap();
        zeros.step_packed(&batch.input, Some(&mask), &batch.d_temporal).unwrap();
        if i == 1 {
            absent.capture_graph().unwrap();
            zeros.capture_graph().unwrap();
        }
    }
    assert_same(&snapshot(&mut absent), &snapshot(&mut zeros), "mask of zeros");
    // A mask is data of the step: under the graph, too, it takes effect and does not stick.
    let (batch, mut first) = (Batch::new(9), mask.clone());
    first[0] = 1;
    first[SEQ_LEN] = 1;
    zeros.step_packed(&batch.input, Some(&first), &batch.d_temporal).unwrap();
    absent.reset_state().unwrap();
    absent.step(&batch.input, &batch.d_temporal).unwrap();
    assert_same(
        &snapshot(&mut absent),
        &snapshot(&mut zeros),
        "documents that start at the window's left edge",
    );
    absent.step(&batch.input, &batch.d_temporal).unwrap();
    zeros.step(&batch.input, &batch.d_temporal).unwrap();
    assert_same(&snapshot(&mut absent), &snapshot(&mut zeros), "after the mask");
}

pub fn recompute_changes_no_bit(target: &Target) {
    let mut keep = target.backbone();
    let mut recompute = target.backbone_builder().recompute(true).build().unwrap();
    for i in 0..3 {
        let batch = Batch::new(i);
        keep.step(&batch.input, &batch.d_temporal).unwrap();
        recompute.step(&batch.input, &batch.d_temporal).unwrap();
        assert_same(&snapshot(&mut keep), &snapshot(&mut recompute), &format!("step {i}"));
    }
}

pub fn asking_for_the_input_gradient_changes_no_bit(target: &Target) {
    let mut plain = target.backbone();
    let mut asked = target.backbone_builder().input_gradient(true).build().unwrap();
    for i in 0..3 {
        let batch = Batch::new(i);
        plain.step(&batch.input, &batch.d_temporal).unwrap();
        asked.step(&batch.input, &batch.d_temporal).unwrap();
        let (a, b) = (snapshot(&mut plain), snapshot(&mut asked));
        assert_same_but(&a, &b, &["input gradient"], &format!("step {i}"));
    }
    // The gradient of the last window alone, not a sum over windows.
    let last = asked.input_gradient().unwrap().into_owned();
    assert_eq!(last.len(), BATCH * SEQ_LEN * INPUT_DIM);
    assert!(last.iter().all(|g| g.is_finite()) && last.iter().any(|g| *g != 0.0));
    let mut fresh = target.backbone_builder().input_gradient(true).build().unwrap();
    let first = Batch::new(0);
    let accumulate = BackwardOpts::new().with_accumulate_only(true);
    split_step(&mut fresh, &first, accumulate);
    let once = fresh.input_gradient().unwrap().into_owned();
    fresh.reset_state().unwrap();
    split_step(&mut fresh, &first, accumulate);
    assert!(once == fresh.input_gradient().unwrap().into_owned());
}

/// A = -exp(A_log) and the half shadow are refreshed by every route that changes weights.
pub fn derived_values_follow_every_change_of_the_weights(target: &Target) {
    let probe = |t: &mut MambaTrainer, what: &str| {
        let mut fresh = target.builder_of(t.snapshot_master().unwrap()).build().unwrap();
        fresh.load_recurrent_state(&t.recurrent_state().unwrap()).unwrap();
        let (batch, mut a, mut b) = (Batch::new(77), Batch::temporal(), Batch::temporal());
        t.forward(&batch.input, &mut a).unwrap();
        fresh.forward(&batch.input, &mut b).unwrap();
        assert!(a.iter().zip(&b).all(|(x, y)| x.to_bits() == y.to_bits()), "stale after {what}");
    };
    let mut t = target.backbone_builder().lr(0.05).build().unwrap();
    let batch = Batch::new(1);
    t.step(&batch.input, &batch.d_temporal).unwrap();
    probe(&mut t, "an eager step");
    t.capture_graph().unwrap();
    t.step(&batch.input, &batch.d_temporal).unwrap();
    probe(&mut t, "a replay");
    t.drop_graph();
    split_step(&mut t, &batch, BackwardOpts::new());
    probe(&mut t, "a split step");
    split_step(&mut t, &batch, BackwardOpts::new().with_accumulate_only(true));
    t.apply_step(None).unwrap();
    probe(&mut t, "apply_step");
    let mut other = target.backbone();
    other.load_training_state(&t.training_state(&[]).unwrap()).unwrap();
    probe(&mut other, "loading a state");
}

/// A trainer with a past computes what a fresh one with the same state computes.
pub fn old_contents_of_buffers_do_not_leak(target: &Target) {
    let mut used = target.backbone();
    for i in 0..3 {
        let batch = Batch::new(i);
        used.step(&batch.input, &batch.d_temporal).unwrap();
    }
    split_step(&mut used, &Batch::poisoned(3, f32::NAN), BackwardOpts::new().with_accumulate_only(true));
    used.discard_window().unwrap();
    let state = used.training_state(&[]).unwrap();
    let mut fresh = target.backbone();
    fresh.load_training_state(&state).unwrap();
    for t in [&mut used, &mut fresh] {
        let batch = Batch::new(4);
        t.step(&batch.input, &batch.d_temporal).unwrap();
    }
    assert_same_but(&snapshot(&mut used), &snapshot(&mut fresh), &["outcome"], "a trainer with a past");
}

pub fn callers_buffers_are_free_after_each_call(target: &Target) {
    let (mut kept, mut reused) = (target.backbone(), target.backbone());
    let mut buffer = Batch::new(0);
    for i in 0..40 {
        let batch = Batch::new(i);
        buffer.input.copy_from_slice(&batch.input);
        buffer.d_temporal.copy_from_slice(&batch.d_temporal);
        kept.step(&batch.input, &batch.d_temporal).unwrap();
        reused.step(&buffer.input, &buffer.d_temporal).unwrap();
        buffer.input.fill(f32::NAN);
        buffer.d_temporal.fill(f32::NAN);
        if i == 3 {
            kept.capture_graph().unwrap();
            reused.capture_graph().unwrap();
        }
    }
    assert_same(&snapshot(&mut kept), &snapshot(&mut reused), "overwritten buffers");
}

pub fn state_is_carried_until_reset(target: &Target) {
    let mut t = target.backbone();
    let batch = Batch::new(5);
    let (mut first, mut carried, mut again) = (Batch::temporal(), Batch::temporal(), Batch::temporal());
    t.forward(&batch.input, &mut first).unwrap();
    t.forward(&batch.input, &mut carried).unwrap();
    t.reset_state().unwrap();
    let empty = t.recurrent_state().unwrap();
    assert!(empty.conv.iter().chain(&empty.ssm).all(|v| v.to_bits() == 0));
    t.forward(&batch.input, &mut again).unwrap();
    assert_eq!(first.len(), BATCH * SEQ_LEN * D_MODEL);
    assert!(first != carried && first == again);
    // Its own state put back is no change.
    let state = t.recurrent_state().unwrap();
    t.load_recurrent_state(&state).unwrap();
    let mut next = Batch::temporal();
    t.forward(&batch.input, &mut next).unwrap();
    assert!(next == carried);
}
