//! Random sequences of calls, good and bad, against a small model of the contract.

use super::{Batch, Snapshot, Target, assert_same, assert_same_but, snapshot};
use mamba_trainer::{BackwardOpts, MambaTrainer, RecurrentState, Result, StepOpts};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// One call. `bad` arguments are wrong in length or value.
#[derive(Debug, Clone, Copy)]
enum Call {
    Forward { seed: u64, bad: bool },
    Backward { seed: u64, accumulate: bool, clip: Option<f64>, bad: bool },
    Step { seed: u64, bad: bool },
    Apply { clip: Option<f64>, skip: Option<f64> },
    Discard,
    Reset,
    SetLr(f64),
    SetOpts { clip: Option<f64>, skip: Option<f64> },
    Capture,
    Drop,
    Decay(bool),
    LoadOptimizer { bad: bool },
    LoadRecurrence { bad: bool },
    LoadScaler,
    Upload { bad: bool },
    SaveAndLoad,
}

fn threshold() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        4 => Just(None),
        4 => (-3i32..3).prop_map(|e| Some(10f64.powi(e))),
        1 => prop_oneof![Just(Some(f64::NAN)), Just(Some(0.0)), Just(Some(-1.0)), Just(Some(f64::INFINITY))],
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let seed = 0u64..20;
    let bad = prop::bool::weighted(0.15);
    prop_oneof![
        4 => (seed.clone(), bad).prop_map(|(seed, bad)| Call::Forward { seed, bad }),
        6 => (seed.clone(), any::<bool>(), threshold(), bad).prop_map(
            |(seed, accumulate, clip, bad)| Call::Backward { seed, accumulate, clip, bad }),
        4 => (seed, bad).prop_map(|(seed, bad)| Call::Step { seed, bad }),
        2 => (threshold(), threshold()).prop_map(|(clip, skip)| Call::Apply { clip, skip }),
        1 => Just(Call::Discard),
        1 => Just(Call::Reset),
        1 => prop_oneof![Just(1e-3), Just(0.1), Just(0.0), Just(f64::NAN)].prop_map(Call::SetLr),
        1 => (threshold(), threshold()).prop_map(|(clip, skip)| Call::SetOpts { clip, skip }),
        2 => Just(Call::Capture),
        1 => Just(Call::Drop),
        1 => any::<bool>().prop_map(Call::Decay),
        1 => bad.prop_map(|bad| Call::LoadOptimizer { bad }),
        1 => bad.prop_map(|bad| Call::LoadRecurrence { bad }),
        1 => Just(Call::LoadScaler),
        1 => bad.prop_map(|bad| Call::Upload { bad }),
        1 => Just(Call::SaveAndLoad),
    ]
}

fn step_opts(clip: Option<f64>, skip: Option<f64>) -> StepOpts {
    let opts = StepOpts::new();
    let opts = clip.map_or(opts, |c| opts.with_clip_max_norm(c));
    skip.map_or(opts, |s| opts.with_step_skip_above(s))
}

fn backward_opts(accumulate: bool, clip: Option<f64>) -> BackwardOpts {
    BackwardOpts::from(step_opts(clip, None)).with_accumulate_only(accumulate)
}

fn cut<T: Clone>(x: &[T], bad: bool) -> &[T] {
    &x[usize::from(bad)..]
}

fn run(t: &mut MambaTrainer, call: Call) -> Result<()> {
    match call {
        Call::Forward { seed, bad } => t.forward(cut(&Batch::new(seed).input, bad), &mut Batch::temporal()),
        Call::Backward { seed, accumulate, clip, bad } => {
            let batch = Batch::new(seed);
            t.backward_step(cut(&batch.d_temporal, bad), backward_opts(accumulate, clip)).map(|_| ())
        }
        Call::Step { seed, bad } => {
            let batch = Batch::new(seed);
            t.step(&batch.input, cut(&batch.d_temporal, bad)).map(|_| ())
        }
        Call::Apply { clip, skip } => t.apply_step_with(clip, skip).map(|_| ()),
        Call::Discard => t.discard_window(),
        Call::Reset => t.reset_state(),
        Call::SetLr(lr) => t.set_lr(lr),
        Call::SetOpts { clip, skip } => t.set_step_opts(step_opts(clip, skip)),
        Call::Capture => t.capture_graph(),
        Call::Drop => {
            t.drop_graph();
            Ok(())
        }
        Call::Decay(on) => t.set_reference_no_decay(on),
        Call::LoadOptimizer { bad } => {
            let mut state = t.optimizer_state()?;
            state.step += 1;
            if bad {
                state.v[0] = -1.0;
            }
            t.load_optimizer_state(&state)
        }
        Call::LoadRecurrence { bad } => {
            let RecurrentState { mut conv, mut ssm } = t.recurrent_state()?;
            conv.iter_mut().chain(&mut ssm).for_each(|v| *v *= 0.5);
            if bad {
                ssm[0] = f32::NAN;
            }
            t.load_recurrent_state(&RecurrentState { conv, ssm })
        }
        Call::LoadScaler => {
            let state = t.scaler_state()?;
            t.load_scaler_state(state)
        }
        Call::Upload { bad } => {
            let grads: Vec<f32> = t.grad_arena()?.iter().map(|g| 0.5 * g).collect();
            t.upload_grad_arena(cut(&grads, bad))
        }
        Call::SaveAndLoad => {
            let state = t.training_state(b"")?;
            t.load_training_state(&state)
        }
    }
}

/// What the contract says of the order of calls.
#[derive(Debug, Default)]
struct Model {
    /// Whether there is a pending forward, and whether it is of this mode.
    pending: Option<bool>,
    window: Option<u64>,
    graph: bool,
    warm: bool,
}

impl Model {
    /// Whether the call must succeed; makes the change that it makes.
    fn predict(&mut self, call: Call) -> bool {
        let fine = |x: Option<f64>| x.is_none_or(|x| x.is_finite() && x > 0.0);
        let ok = match call {
            Call::Forward { bad, .. } => !bad,
            Call::Backward { accumulate, clip, bad, .. } => {
                !bad && fine(clip) && !(accumulate && clip.is_some()) && self.pending == Some(true)
            }
            Call::Step { bad, .. } => !bad && self.window.is_none(),
            Call::Apply { clip, skip } => fine(clip) && fine(skip) && self.window.is_some(),
            Call::Discard => self.window.is_some(),
            Call::Reset | Call::Drop => true,
            Call::SetLr(lr) => fine(Some(lr)),
            Call::SetOpts { clip, skip } => fine(clip) && fine(skip),
            Call::Capture => self.warm && self.window.is_none(),
            Call::Decay(_) => !self.graph,
            Call::LoadOptimizer { bad } => !bad && !self.graph && self.window.is_none(),
            Call::LoadRecurrence { bad } => !bad,
            Call::LoadScaler | Call::SaveAndLoad => !self.graph && self.window.is_none(),
            Call::Upload { bad } => !bad && self.window.is_some(),
        };
        if ok {
            self.change(call);
        } else if matches!(call, Call::Forward { .. }) {
            self.pending = None;
        }
        ok
    }

    fn change(&mut self, call: Call) {
        match call {
            Call::Forward { .. } => self.pending = Some(true),
            Call::Backward { accumulate: true, .. } => {
                self.window = Some(self.window.unwrap_or(0) + 1);
                self.pending = None;
            }
            Call::Backward { .. } => (self.window, self.pending) = (None, None),
            Call::Step { .. } => {
                self.warm |= !self.graph;
                self.pending = None;
            }
            Call::Apply { .. } => (self.window, self.pending) = (None, None),
            Call::Discard => self.window = None,
            Call::Reset | Call::LoadRecurrence { .. } | Call::SaveAndLoad => self.pending = None,
            Call::Capture => (self.graph, self.pending) = (true, self.pending.map(|_| false)),
            Call::Drop if self.graph => (self.graph, self.pending) = (false, self.pending.map(|_| false)),
            _ => {}
        }
    }
}

/// Errors, captures and replays leave no trace: a second trainer that gets the successful calls alone, no graph and
/// the split calls in place of the fused ones, ends with the same bits.
pub fn every_error_leaves_the_bits_alone(target: &Target) {
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    let sequences = prop::collection::vec(call(), 1..40);
    let outcome = TestRunner::new(config).run(&sequences, |calls| {
        sequence(target, &calls);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn sequence(target: &Target, calls: &[Call]) {
    let (mut t, mut twin) = (target.backbone(), target.backbone());
    let mut model = Model::default();
    for (i, &call) in calls.iter().enumerate() {
        let before = snapshot(&mut t);
        let expected = model.predict(call);
        let got = run(&mut t, call);
        assert_eq!(got.is_ok(), expected, "call {i}, {call:?}: {got:?}");
        let after = snapshot(&mut t);
        match &got {
            Ok(()) => repeat(&mut twin, call),
            Err(_) if matches!(call, Call::Forward { .. }) => {
                assert_same_but(&before, &after, &["pending"], &format!("call {i}, {call:?}"));
                twin.forward(&[], &mut []).unwrap_err();
            }
            Err(_) => assert_same(&before, &after, &format!("call {i}, {call:?}")),
        }
        assert_eq!(t.window(), model.window, "call {i}, {call:?}");
        assert_eq!(t.has_graph(), model.graph, "call {i}, {call:?}");
        assert_eq!(t.has_pending_forward(), model.pending.is_some(), "call {i}, {call:?}");
    }
    let (a, b): (Snapshot, Snapshot) = (snapshot(&mut t), snapshot(&mut twin));
    assert_same_but(&a, &b, &["graph", "pending"], "the successful calls alone");
}

/// The call on a trainer without a graph; the fused step as its two halves.
fn repeat(twin: &mut MambaTrainer, call: Call) {
    match call {
        Call::Capture | Call::Drop => {}
        Call::Step { seed, .. } => {
            let (batch, opts) = (Batch::new(seed), twin.step_opts());
            twin.forward(&batch.input, &mut Batch::temporal()).unwrap();
            twin.backward_step(&batch.d_temporal, opts.into()).unwrap();
        }
        _ => run(twin, call).unwrap(),
    }
}
