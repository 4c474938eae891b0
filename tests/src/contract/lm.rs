//! Language models: losses, windows, counted tokens.

use super::target::{BATCH, SEQ_LEN, VOCAB};
use super::{Target, Tokens, assert_same, assert_same_but, snapshot};
use mamba_model::{IGNORE_INDEX, ModelError};
use mamba_trainer::{BackwardOpts, LmStepMetrics, LmTrainer, StepOpts, TrainerError, Verdict, WeightDtype};

const TOKENS: usize = BATCH * SEQ_LEN;

/// Relative distance of two vectors in the L2 norm.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let off = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    off / norm(&mut b.iter().map(|b| f64::from(*b)))
}

/// One step and its own metrics, waited for.
fn step(t: &mut LmTrainer, tokens: &Tokens) -> LmStepMetrics {
    t.step(&tokens.batch()).unwrap();
    finished(t)
}

/// Metrics of the last closed window.
fn finished(t: &mut LmTrainer) -> LmStepMetrics {
    let metrics = t.last_metrics().unwrap().unwrap();
    assert_eq!(metrics.lag, 0);
    metrics
}

/// Bound on the distance of gradients that are equal up to rounding: measured 1.9e-7 in f32.
fn rounding(target: &Target) -> f64 {
    match target.dtype {
        WeightDtype::F32 => 2e-6,
        _ => 2e-2,
    }
}

/// The mean gradient of a window: the arena over the loss scale and the counted weight.
fn mean_gradient(t: &mut LmTrainer, weight: f64) -> Vec<f32> {
    let scale = t.scaler_state().unwrap().map_or(1.0, |s| f64::from(s.scale));
    t.grad_arena().unwrap().iter().map(|g| (f64::from(*g) / scale / weight) as f32).collect()
}

pub fn graph_and_windows_have_the_bits_of_eager_steps(target: &Target) {
    for tied in [true, false] {
        let (mut fused, mut graph, mut window) = (target.lm(tied), target.lm(tied), target.lm(tied));
        let opts = StepOpts::new().with_clip_max_norm(0.25).with_control_clip_max_norm(0.125);
        for t in [&mut fused, &mut graph, &mut window] {
            t.set_step_opts(opts).unwrap();
        }
        for i in 0..6 {
            let tokens = Tokens::new(i).counting(TOKENS - i as usize);
            let (a, b) = (step(&mut fused, &tokens), step(&mut graph, &tokens));
            assert_eq!(b.graph_replayed, i > 0);
            assert_eq!((a.loss.to_bits(), a.tokens, a.grad_norm), (b.loss.to_bits(), b.tokens, b.grad_norm));
            let micro = window.accumulate(&tokens.batch()).unwrap();
            assert_eq!((micro.micro_batches, micro.tokens), (1, TOKENS as u64 - i));
            window.apply_window().unwrap();
            let c = finished(&mut window);
            assert_eq!((a.loss.to_bits(), a.tokens, a.step), (c.loss.to_bits(), c.tokens, c.step));
            let want = snapshot(&mut fused);
            assert_same_but(&want, &snapshot(&mut graph), &["graph"], "graph");
            assert_same(&want, &snapshot(&mut window), "window");
            if i == 0 {
                graph.capture_graph().unwrap();
            }
        }
        assert_eq!(finished(&mut fused).step, 6);
    }
}

/// Two micro-batches that together hold the tokens of one window count like the window.
pub fn unequal_micro_batches_average_over_counted_tokens(target: &Target) {
    let mut whole = target.lm(true);
    let tokens = Tokens::new(1);
    whole.accumulate(&tokens.batch()).unwrap();
    let want = mean_gradient(&mut whole, TOKENS as f64);
    whole.apply_window().unwrap();

    let mut parts = target.lm(true);
    let (mut few, mut many) = (tokens.clone(), tokens.clone());
    few.targets[3..].fill(IGNORE_INDEX);
    many.targets[..3].fill(IGNORE_INDEX);
    parts.accumulate(&few.batch()).unwrap();
    let first = mean_gradient(&mut parts, 3.0);
    parts.reset_state().unwrap();
    let micro = parts.accumulate(&many.batch()).unwrap();
    assert_eq!((micro.micro_batches, micro.window_weight), (2, TOKENS as f64));
    let got = mean_gradient(&mut parts, TOKENS as f64);
    assert!(distance(&got, &want) < rounding(target), "{:e}", distance(&got, &want));
    // The mean of the micro-batches' means is another gradient altogether.
    let second: Vec<f32> = {
        let mut t = target.lm(true);
        t.accumulate(&many.batch()).unwrap();
        mean_gradient(&mut t, TOKENS as f64 - 3.0)
    };
    let wrong: Vec<f32> = first.iter().zip(&second).map(|(a, b)| (a + b) / 2.0).collect();
    assert!(distance(&wrong, &want) > 0.1, "{:e}", distance(&wrong, &want));

    parts.apply_window().unwrap();
    let metrics = finished(&mut parts);
    assert_eq!((metrics.tokens, metrics.verdict), (TOKENS as u64, Some(Verdict::Applied)));
    let (a, b) = (finished(&mut whole), metrics);
    assert!((a.loss / b.loss - 1.0).abs() < rounding(target), "{} {}", a.loss, b.loss);
    let (x, y) = (a.grad_norm.unwrap(), b.grad_norm.unwrap());
    assert!((x / y - 1.0).abs() < rounding(target), "{x} {y}");
}

pub fn token_weights_weigh(target: &Target) {
    let ones = Tokens { weights: Some(vec![1.0; TOKENS]), ..Tokens::new(2) };
    let fours = Tokens { weights: Some(vec![4.0; TOKENS]), ..Tokens::new(2) };
    let (mut a, mut b, mut c) = (target.lm(false), target.lm(false), target.lm(false));
    let plain = step(&mut a, &Tokens::new(2));
    let one = step(&mut b, &ones);
    assert_eq!(plain.loss.to_bits(), one.loss.to_bits());
    assert_same(&snapshot(&mut a), &snapshot(&mut b), "weights of 1");
    // A common factor (a power of two: exact but for the subnormal numbers of f16) cancels in the mean.
    let four = step(&mut c, &fours);
    assert_eq!(plain.loss, four.loss);
    if target.dtype == WeightDtype::F16 {
        let ratio = plain.grad_norm.unwrap() / four.grad_norm.unwrap();
        assert!((ratio - 1.0).abs() < rounding(target), "{ratio}");
        return;
    }
    assert_eq!(plain.grad_norm, four.grad_norm);
    assert!(a.snapshot_master().unwrap() == c.snapshot_master().unwrap());
    // Weights are data of one window: they do not stick.
    let (x, y) = (step(&mut a, &Tokens::new(3)), step(&mut c, &Tokens::new(3)));
    assert_eq!(x.loss.to_bits(), y.loss.to_bits());

    // Weight 0 is as good as ignored.
    let mut weights = vec![1.0; TOKENS];
    weights[5..].fill(0.0);
    let zeros = Tokens { weights: Some(weights), ..Tokens::new(2) };
    let (mut d, mut e) = (target.lm(false), target.lm(false));
    let x = step(&mut d, &zeros);
    let y = step(&mut e, &Tokens::new(2).counting(5));
    assert_eq!(x.loss.to_bits(), y.loss.to_bits());
    assert!(d.snapshot_master().unwrap() == e.snapshot_master().unwrap());
}

pub fn evaluation_changes_nothing(target: &Target) {
    let mut t = target.lm(true);
    t.step(&Tokens::new(1).batch()).unwrap();
    let probe = Tokens::new(50).counting(9);
    let before = snapshot(&mut t);
    let first = t.evaluate(&probe.batch()).unwrap();
    assert_eq!((first.tokens, first.weight), (9, 9.0));
    assert_same(&before, &snapshot(&mut t), "evaluate");
    assert_eq!(t.evaluate(&probe.batch()).unwrap(), first, "from the empty state each time");
    // Inside a window, and under a graph.
    let mut other = target.lm(true);
    other.step(&Tokens::new(1).batch()).unwrap();
    t.accumulate(&Tokens::new(2).batch()).unwrap();
    let before = snapshot(&mut t);
    t.evaluate(&probe.batch()).unwrap();
    assert_same(&before, &snapshot(&mut t), "evaluate in a window");
    t.apply_window().unwrap();
    other.accumulate(&Tokens::new(2).batch()).unwrap();
    other.apply_window().unwrap();
    t.capture_graph().unwrap();
    t.step(&Tokens::new(3).batch()).unwrap();
    t.evaluate(&probe.batch()).unwrap();
    t.step(&Tokens::new(4).batch()).unwrap();
    other.step(&Tokens::new(3).batch()).unwrap();
    other.step(&Tokens::new(4).batch()).unwrap();
    assert_same_but(&snapshot(&mut t), &snapshot(&mut other), &["graph"], "evaluated and not");
    // The loss of a training step from the empty state is the evaluated one.
    other.reset_state().unwrap();
    let want = other.evaluate(&probe.batch()).unwrap();
    assert_eq!(step(&mut other, &probe).loss.to_bits(), want.mean().to_bits());
    // No counted token: sums of nothing.
    let empty = other.evaluate(&Tokens::new(1).counting(0).batch()).unwrap();
    assert_eq!((empty.tokens, empty.nll), (0, 0.0));
    assert!(empty.mean().is_nan());
}

pub fn windows_without_counted_tokens(target: &Target) {
    let mut t = target.lm(true);
    t.step(&Tokens::new(1).batch()).unwrap();
    let nothing = Tokens::new(2).counting(0);
    let weightless = Tokens { weights: Some(vec![0.0; TOKENS]), ..Tokens::new(2) };
    for batch in [nothing.batch(), weightless.batch()] {
        let before = snapshot(&mut t);
        let error = t.step(&batch).unwrap_err();
        assert!(matches!(error, TrainerError::NoCountedTokens), "{error}");
        let error = t.backward_step(&batch, BackwardOpts::new()).unwrap_err();
        assert!(matches!(error, TrainerError::NoCountedTokens), "{error}");
        assert_same(&before, &snapshot(&mut t), "a window of nothing");
    }
    // A micro-batch of nothing is fine; the window needs one token in all.
    let micro = t.accumulate(&nothing.batch()).unwrap();
    assert_eq!((micro.tokens, micro.window_weight), (0, 0.0));
    assert!(t.grad_arena().unwrap().iter().all(|g| *g == 0.0));
    let before = snapshot(&mut t);
    let error = t.apply_window().unwrap_err();
    assert!(matches!(error, TrainerError::NoCountedTokens), "{error}");
    assert_same(&before, &snapshot(&mut t), "closing a window of nothing");
    t.accumulate(&Tokens::new(3).counting(1).batch()).unwrap();
    t.apply_window().unwrap();
    assert_eq!(finished(&mut t).tokens, 1);
    // Weights whose sum has no f32 reciprocal.
    let tiny = Tokens { weights: Some(vec![1e-45; TOKENS]), ..Tokens::new(2) };
    let error = t.step(&tiny.batch()).unwrap_err();
    assert!(matches!(error, TrainerError::Setting { name: "window weight", .. }), "{error}");
}

pub fn bad_batches_are_refused(target: &Target) {
    let mut t = target.lm(false);
    t.step(&Tokens::new(1).batch()).unwrap();
    let good = Tokens::new(2);
    let with = |f: &dyn Fn(&mut Tokens)| {
        let mut tokens = good.clone();
        f(&mut tokens);
        tokens
    };
    let all = |v: f32| Some(vec![v; TOKENS]);
    let bad: Vec<(&str, Tokens)> = vec![
        ("input_ids", with(&|b| b.inputs.truncate(TOKENS - 1))),
        ("targets", with(&|b| b.targets.push(0))),
        ("weights", with(&|b| b.weights = Some(vec![1.0; 3]))),
        ("reset", with(&|b| b.reset = Some(vec![0; 3]))),
        ("reset", with(&|b| b.reset = Some(vec![255; TOKENS]))),
        ("weights", with(&|b| b.weights = all(f32::NAN))),
        ("weights", with(&|b| b.weights = all(f32::INFINITY))),
        ("weights", with(&|b| b.weights = all(-1.0))),
        ("token 11", with(&|b| b.inputs[4] = VOCAB as u32)),
        ("token 11", with(&|b| b.targets[4] = VOCAB as i32)),
        ("token -1", with(&|b| b.targets[13] = -1)),
        ("token -101", with(&|b| b.targets[0] = -101)),
        ("token 4294967295", with(&|b| b.inputs[0] = u32::MAX)),
    ];
    let before = snapshot(&mut t);
    for (what, batch) in &bad {
        let batch = batch.batch();
        let errors = [
            t.step(&batch).map(|_| ()).unwrap_err(),
            t.accumulate(&batch).map(|_| ()).unwrap_err(),
            t.backward_step(&batch, BackwardOpts::new()).map(|_| ()).unwrap_err(),
            t.evaluate(&batch).map(|_| ()).unwrap_err(),
        ];
        for error in errors {
            assert!(error.to_string().contains(what), "{what}: {error}");
        }
        assert_same(&before, &snapshot(&mut t), what);
    }
    // Ids of the vocabulary's padding are no tokens.
    let padding = with(&|b| b.targets[4] = VOCAB as i32);
    let error = t.step(&padding.batch()).unwrap_err();
    let ok = matches!(error, TrainerError::Model(ModelError::Token { index: 4, vocab_size: VOCAB, .. }));
    assert!(ok, "{error}");
    t.step(&good.batch()).unwrap();
}

pub fn training_lowers_the_loss(target: &Target) {
    let mut t = target.lm_builder(Target::lm_weights(true)).lr(0.02).build().unwrap();
    let tokens = Tokens::new(7);
    let loss = |t: &mut LmTrainer| {
        t.reset_state().unwrap();
        step(t, &tokens).loss
    };
    let first = loss(&mut t);
    // ln(12): the head starts near zero, so all 12 rows (padding included) are about equally likely.
    // Measured 2.44, where ln 12 is 2.48.
    assert!((first - 12f64.ln()).abs() < 0.2, "{first}");
    t.capture_graph().unwrap();
    let last = (0..60).map(|_| loss(&mut t)).last().unwrap();
    assert!(last < 0.25 * first, "{first} {last}");
}
