//! Steps whose gradient norm lies too far above the last ones.

use super::clip::{counting, split, verdict};
use super::{Batch, Target, assert_same, assert_same_but, snapshot};
use mamba_optim::OptimError;
use mamba_trainer::{BackwardOpts, MambaTrainer, StepOpts, TrainerError, Verdict};

/// Norms that are kept, and how many of them it takes.
const WINDOW: u64 = 128;
const MIN_NORMS: u64 = 16;

fn z_score(z: f64) -> StepOpts {
    StepOpts::new().with_skip_z_score(z)
}

/// A window with a gradient six times as long, which f16 can hold.
fn spike(seed: u64) -> Batch {
    let mut batch = Batch::new(seed);
    batch.d_temporal.iter_mut().for_each(|d| *d *= 6.0);
    batch
}

fn step(t: &mut MambaTrainer, batch: &Batch) {
    t.step(&batch.input, &batch.d_temporal).unwrap();
}

fn warm(t: &mut MambaTrainer, steps: std::ops::Range<u64>) {
    steps.for_each(|i| step(t, &Batch::new(i)));
}

pub fn an_outlier_leaves_no_trace(target: &Target) {
    let (mut t, mut clean) = (target.backbone(), target.backbone());
    for t in [&mut t, &mut clean] {
        t.set_step_opts(z_score(8.0)).unwrap();
        warm(t, 0..MIN_NORMS);
    }
    assert_eq!((t.norm_history().unwrap().len(), t.skips().unwrap().outliers), (16, 0));
    let (before, recurrence) = (snapshot(&mut t), t.recurrent_state().unwrap());
    let moving = [&["conv", "ssm", "grads", "outcome", "skips"], counting(t.dtype())].concat();
    let skipped = |t: &mut MambaTrainer, what: &str, count: u64| {
        assert_eq!(verdict(t), Verdict::OutlierSkipped, "{what}");
        assert_same_but(&before, &snapshot(t), &moving, what);
        let skips = t.skips().unwrap();
        assert_eq!((skips.outliers, skips.spikes, u64::from(skips.consecutive)), (count, 0, count), "{what}");
    };
    step(&mut t, &spike(50));
    skipped(&mut t, "fused", 1);
    let metrics = split(&mut t, &spike(51), z_score(8.0).into());
    assert!(!metrics.optimizer_stepped && metrics.grad_norm.is_some() && metrics.step == MIN_NORMS);
    skipped(&mut t, "split", 2);
    split(&mut t, &Batch::new(52), BackwardOpts::new().with_accumulate_only(true));
    split(&mut t, &spike(53), BackwardOpts::new().with_accumulate_only(true));
    assert!(!t.apply_step_opts(&z_score(8.0)).unwrap().optimizer_stepped);
    skipped(&mut t, "window", 3);
    t.capture_graph().unwrap();
    step(&mut t, &spike(54));
    t.drop_graph();
    skipped(&mut t, "graph", 4);

    // As if the outliers had never been.
    t.load_recurrent_state(&recurrence).unwrap();
    for t in [&mut t, &mut clean] {
        warm(t, 60..63);
        assert_eq!(verdict(t), Verdict::Applied);
    }
    let apart = [&["outcome", "skips"], counting(t.dtype())].concat();
    assert_same_but(&snapshot(&mut t), &snapshot(&mut clean), &apart, "after the outliers");
    assert_eq!(t.skips().unwrap().consecutive, 0);
}

pub fn outliers_need_a_history_and_the_option(target: &Target) {
    let mut t = target.backbone();
    t.set_step_opts(z_score(1e-3)).unwrap();
    // One norm too few: everything is applied, and its norm is kept in order.
    let mut norms = Vec::new();
    for i in 0..MIN_NORMS {
        step(&mut t, &if i == 9 { spike(i) } else { Batch::new(i) });
        assert_eq!(verdict(&mut t), Verdict::Applied, "step {i}");
        norms.push(t.last_grad_norm().unwrap().unwrap());
    }
    assert_eq!(t.norm_history().unwrap(), norms);
    // A window that is not finite does not enter.
    step(&mut t, &Batch::poisoned(30, f32::NAN));
    assert_ne!(verdict(&mut t), Verdict::Applied);
    assert_eq!(t.norm_history().unwrap(), norms);
    t.reset_state().unwrap();
    // Off, an outlier is a step like any other, and is kept.
    t.set_step_opts(StepOpts::new()).unwrap();
    step(&mut t, &spike(31));
    assert_eq!(verdict(&mut t), Verdict::Applied);
    norms.push(t.last_grad_norm().unwrap().unwrap());
    assert_eq!(t.norm_history().unwrap(), norms);
    // The threshold itself: mean and deviation of what is kept, in any order but for the last places.
    let mean = norms.iter().sum::<f64>() / norms.len() as f64;
    let squares: f64 = norms.iter().map(|n| (n - mean).powi(2)).sum();
    let deviation = (squares / (norms.len() - 1) as f64).sqrt();
    let z = 2.0;
    for (norm, want) in [(1.01, Verdict::OutlierSkipped), (0.99, Verdict::Applied)] {
        let mut t = target.backbone();
        t.load_norm_history(&norms).unwrap();
        let batch = Batch::new(40);
        split(&mut t, &batch, BackwardOpts::new().with_accumulate_only(true));
        let grads = t.grad_arena().unwrap().into_owned();
        t.apply_step_opts(&StepOpts::new().with_step_skip_above(f64::MIN_POSITIVE)).unwrap();
        let factor = norm * (mean + z * deviation) / t.last_grad_norm().unwrap().unwrap();
        let scaled: Vec<f32> = grads.iter().map(|g| (f64::from(*g) * factor) as f32).collect();
        split(&mut t, &batch, BackwardOpts::new().with_accumulate_only(true));
        t.upload_grad_arena(&scaled).unwrap();
        t.apply_step_opts(&z_score(z)).unwrap();
        assert_eq!(verdict(&mut t), want, "{norm} of the threshold");
    }
}

/// The z-score changes from step to step, also under the graph; the fused step, its halves and the replay skip the same
/// steps, through more steps than the window holds.
pub fn eager_split_and_graph_skip_alike(target: &Target) {
    let (mut eager, mut halves, mut graph) = (target.backbone(), target.backbone(), target.backbone());
    let opts_of = |i: u64| match i % 4 {
        0 => z_score(0.5),
        1 => StepOpts::new(),
        2 => z_score(6.0).with_clip_max_norm(1.0),
        _ => z_score(1.0).with_step_skip_above(1e3),
    };
    for i in 0..WINDOW + 40 {
        let batch = if i % 29 == 27 { spike(i) } else { Batch::new(i) };
        for t in [&mut eager, &mut graph] {
            t.set_step_opts(opts_of(i)).unwrap();
            step(t, &batch);
        }
        split(&mut halves, &batch, opts_of(i).into());
        if i == 2 {
            graph.capture_graph().unwrap();
        }
        if i % 8 == 7 {
            let (a, what) = (snapshot(&mut eager), format!("step {i}"));
            assert_same_but(&a, &snapshot(&mut halves), &["step_opts"], &what);
            assert_same_but(&a, &snapshot(&mut graph), &["graph"], &what);
        }
    }
    let (steps, outliers) = (eager.optimizer_state().unwrap().step, eager.skips().unwrap().outliers);
    assert!(outliers >= 10 && steps + outliers == WINDOW + 40, "{outliers} outliers, {steps} steps");
    assert_eq!(eager.norm_history().unwrap().len() as u64, steps.min(WINDOW));
}

pub fn a_run_resumes_in_the_middle_of_the_window(target: &Target) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.state");
    for cut in [MIN_NORMS - 3, WINDOW + 5] {
        let mut unbroken = target.backbone();
        warm(&mut unbroken, 0..cut);
        unbroken.set_step_opts(z_score(0.5)).unwrap();
        unbroken.save_state(&path, b"").unwrap();
        let state = unbroken.training_state(b"").unwrap();
        assert_eq!(state.norms.len() as u64, cut.min(WINDOW));
        warm(&mut unbroken, cut..cut + 15);
        let want = snapshot(&mut unbroken);
        assert!(unbroken.skips().unwrap().outliers > 0, "cut at {cut}");

        let mut resumed = target.backbone();
        resumed.load_state(&path).unwrap();
        assert_eq!(resumed.norm_history().unwrap(), state.norms);
        warm(&mut resumed, cut..cut + 15);
        assert_same_but(&want, &snapshot(&mut resumed), &["outcome"], &format!("cut at {cut}"));
        // Without the norms the run goes another way.
        let mut forgetful = target.backbone();
        forgetful.load_training_state(&state).unwrap();
        forgetful.load_norm_history(&[]).unwrap();
        warm(&mut forgetful, cut..cut + 15);
        assert!(want.parts != snapshot(&mut forgetful).parts, "cut at {cut}");
    }
}

pub fn norm_histories_are_checked(target: &Target) {
    let mut t = target.backbone();
    warm(&mut t, 0..3);
    let norms = t.norm_history().unwrap();
    let before = snapshot(&mut t);
    for bad in [vec![1.0; WINDOW as usize + 1], vec![1.0, f64::NAN], vec![f64::INFINITY], vec![-1.0]] {
        let error = t.load_norm_history(&bad).unwrap_err();
        let ok = matches!(error, TrainerError::Optim(OptimError::State { field: "norms", .. }));
        assert!(ok, "{error}");
        let state = t.training_state(b"").unwrap();
        let error = t.load_training_state(&mamba_trainer::TrainingState { norms: bad, ..state }).unwrap_err();
        assert!(error.to_string().contains("`norms`"), "{error}");
        assert_same(&before, &snapshot(&mut t), "bad norms");
    }
    t.capture_graph().unwrap();
    let error = t.load_norm_history(&norms).unwrap_err();
    assert!(matches!(error, TrainerError::UnderGraph { call: "load_norm_history" }), "{error}");
    t.drop_graph();
    split(&mut t, &Batch::new(4), BackwardOpts::new().with_accumulate_only(true));
    let error = t.load_norm_history(&norms).unwrap_err();
    assert!(matches!(error, TrainerError::WindowOpen { call: "load_norm_history", .. }), "{error}");
    t.discard_window().unwrap();
    let most = vec![0.5; WINDOW as usize];
    t.load_norm_history(&most).unwrap();
    assert_eq!(t.norm_history().unwrap(), most);
    // A full window drops the oldest.
    warm(&mut t, 5..7);
    let after = t.norm_history().unwrap();
    assert!(after.len() == most.len() && after[..126] == most[2..] && after[126..].iter().all(|n| *n != 0.5));
}
