//! Five optimizer steps against the golden runs: accumulation, clipping, decay groups, carried state. Once with the oracle
//! and AdamW in f64, once with a whole trainer on the CPU.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::oracle::Oracle;
use mamba_model::{MambaWeights, ModelInput};
use mamba_tests::golden::{Case, relative_error};
use mamba_tests::golden_model::{CASES, Sizes, own_name, tensor_kind, weights_of};
use mamba_tests::tolerance::{Checks, Route};
use mamba_trainer::{BackwardOpts, Device, MambaTrainer, TrainSessionCfg};
use serde_json::Value;

const STEPS: usize = 5;

/// One run of a case.
struct Run<'a> {
    case: &'a Case,
    key: &'a str,
    options: &'a Value,
    weights: MambaWeights,
    sizes: Sizes,
    inputs: Vec<f32>,
    upstream: Vec<f32>,
}

/// What five steps leave.
#[derive(Default)]
struct Finished {
    grad_norm: Vec<f64>,
    loss: Vec<f64>,
    params: Vec<f64>,
    m: Vec<f64>,
    v: Vec<f64>,
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

impl Run<'_> {
    fn number(&self, name: &str) -> f64 {
        self.options[name].as_f64().unwrap()
    }

    fn flag(&self, name: &str) -> bool {
        self.options[name].as_bool().unwrap()
    }

    fn beta(&self, i: usize) -> f64 {
        self.options["betas"][i].as_f64().unwrap()
    }

    fn max_norm(&self) -> Option<f64> {
        self.options["max_norm"].as_f64()
    }

    fn accumulate(&self) -> usize {
        self.options["accumulate"].as_u64().unwrap() as usize
    }

    /// Input and scaled upstream gradient of micro-batch `j` of a step.
    fn window(&self, step: usize, j: usize) -> (&[f32], Vec<f32>) {
        let (index, s) = (step * self.accumulate() + j, &self.sizes);
        let scale = self.case.config["step_scale"][step].as_f64().unwrap() as f32;
        let d = &self.upstream[index * s.temporal_len()..][..s.temporal_len()];
        (&self.inputs[index * s.input_len()..][..s.input_len()], d.iter().map(|d| d * scale).collect())
    }

    /// The oracle and textbook AdamW, all in f64.
    fn by_oracle(&self) -> Finished {
        let mut oracle = Oracle::new(self.weights.config(), wide(self.weights.arena())).unwrap();
        let len = oracle.params.len();
        let mut out = Finished { m: vec![0.0; len], v: vec![0.0; len], ..Finished::default() };
        let mut state = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            let (mut grads, mut loss) = (vec![0.0; len], 0.0);
            for j in 0..self.accumulate() {
                if !self.flag("carry_state") {
                    state = (Vec::new(), Vec::new());
                }
                let (input, d) = self.window(step, j);
                let d = wide(&d);
                let trace =
                    oracle.forward(self.sizes.batch, ModelInput::Dense(input), None, (&state.0, &state.1));
                loss += trace.temporal.iter().zip(&d).map(|(t, d)| t * d).sum::<f64>();
                let part = oracle.backward(&trace, &d).params;
                grads.iter_mut().zip(part).for_each(|(g, p)| *g += p);
                state = (trace.conv_state, trace.ssm_state);
            }
            out.loss.push(loss);
            out.grad_norm.push(grads.iter().map(|g| g * g).sum::<f64>().sqrt());
            self.adamw(&mut oracle, &mut out, &grads);
        }
        out.params = oracle.params;
        out
    }

    /// One step of clipped AdamW from the gradients whose norm was pushed last.
    fn adamw(&self, oracle: &mut Oracle, out: &mut Finished, grads: &[f64]) {
        let (lr, eps, t) = (self.number("lr"), self.number("eps"), out.grad_norm.len() as i32);
        let (b1, b2) = (self.beta(0), self.beta(1));
        let norm = out.grad_norm[out.grad_norm.len() - 1];
        let coef = self.max_norm().map_or(1.0, |max| (max / (norm + 1e-6)).min(1.0));
        let exempt: Vec<&str> = self.case.config["no_decay_params"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        for golden in self.case.names().filter_map(|n| n.strip_prefix("param/")) {
            let keep = self.flag("no_decay_groups") && exempt.contains(&tensor_kind(golden));
            let decay = if keep { 0.0 } else { self.number("weight_decay") };
            let span = oracle.table().get(&own_name(golden)).unwrap().span;
            let moments = span.of_mut(&mut out.m).iter_mut().zip(span.of_mut(&mut out.v));
            let weights = span.of_mut(&mut oracle.params).iter_mut().zip(span.of(grads));
            for ((m, v), (p, g)) in moments.zip(weights) {
                let g = g * coef;
                *m = b1 * *m + (1.0 - b1) * g;
                *v = b2 * *v + (1.0 - b2) * g * g;
                let (m, v) = (*m / (1.0 - b1.powi(t)), *v / (1.0 - b2.powi(t)));
                *p = *p * (1.0 - lr * decay) - lr * m / (v.sqrt() + eps);
            }
        }
    }

    fn trainer(&self) -> MambaTrainer {
        let session = TrainSessionCfg::new(self.sizes.input_dim, self.sizes.batch, self.sizes.seq_len)
            .with_lr(self.number("lr"))
            .with_weight_decay(self.number("weight_decay"));
        MambaTrainer::builder(self.weights.clone(), session)
            .device(Device::Cpu)
            .betas(self.beta(0), self.beta(1))
            .eps(self.number("eps"))
            .reference_no_decay(self.flag("no_decay_groups"))
            .build()
            .unwrap()
    }

    /// The trainer, by forward and backward_step.
    fn by_trainer(&self) -> Finished {
        let mut trainer = self.trainer();
        let mut out = Finished::default();
        let mut temporal = vec![0.0; self.sizes.temporal_len()];
        for step in 0..STEPS {
            let (mut loss, mut norm) = (0.0, None);
            for j in 0..self.accumulate() {
                if !self.flag("carry_state") {
                    trainer.reset_state().unwrap();
                }
                let (input, d) = self.window(step, j);
                trainer.forward(input, &mut temporal).unwrap();
                loss += temporal.iter().zip(&d).map(|(&t, &d)| f64::from(t) * f64::from(d)).sum::<f64>();
                let last = j + 1 == self.accumulate();
                let opts = BackwardOpts::new().with_accumulate_only(!last);
                let opts = match self.max_norm() {
                    Some(max_norm) if last => opts.with_clip_max_norm(max_norm),
                    _ => opts,
                };
                norm = trainer.backward_step(&d, opts).unwrap().grad_norm;
            }
            out.loss.push(loss);
            out.grad_norm.push(norm.unwrap());
        }
        let state = trainer.optimizer_state().unwrap();
        assert_eq!(state.step, STEPS as u64);
        out.params = wide(trainer.snapshot_master().unwrap().arena());
        (out.m, out.v) = (wide(&state.m), wide(&state.v));
        out
    }

    /// Returns how many tensors were compared.
    fn check(&self, out: &Finished, checks: &mut Checks) -> usize {
        let (case, key) = (self.case, self.key);
        case.check(checks, "run/grad_norm", &format!("run/{key}/grad_norm"), &out.grad_norm);
        case.check(checks, "run/loss", &format!("run/{key}/loss"), &out.loss);
        let mut compared = 0;
        for golden in case.names().filter_map(|n| n.strip_prefix("param/")) {
            let span = self.weights.table().get(&own_name(golden)).unwrap().span;
            for (kind, got) in [("final", &out.params), ("exp_avg", &out.m), ("exp_avg_sq", &out.v)] {
                let name = format!("run/{key}/{kind}/{golden}");
                if case.find(&name).is_some() {
                    case.check(checks, &format!("run/{kind}"), &name, span.of(got));
                    compared += 1;
                }
            }
            let name = format!("run/{key}/final/{golden}");
            let Some(want) = case.find(&name) else { continue };
            // The weights hide a wrong update, so the update is compared, too.
            let start = wide(span.of(self.weights.arena()));
            let moved = |x: &[f64]| x.iter().zip(&start).map(|(a, b)| a - b).collect::<Vec<f64>>();
            let (got, moved_want) = (moved(span.of(&out.params)), moved(want));
            let norm = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>().sqrt();
            let rounding = case.rounding(&name) * norm(want) / norm(&moved_want);
            let quantity = format!("run/update/{}", tensor_kind(golden));
            let place = format!("{} {name}", case.name);
            checks.add(&quantity, &place, relative_error(&got, &moved_want), rounding);
        }
        compared
    }
}

fn compare_all(route: Route, finish: fn(&Run<'_>) -> Finished) {
    let (mut checks, mut compared) = (Checks::new(route), 0);
    for name in CASES {
        let case = Case::read(&format!("backbone/{name}"));
        let runs = case.config["runs"].as_object().unwrap();
        assert_eq!(runs.len(), 4);
        for (key, options) in runs {
            let (weights, sizes) = weights_of(&case);
            let (inputs, upstream) = (case.f32("windows/input"), case.f32("windows/d_temporal"));
            let run = Run { case: &case, key, options, weights, sizes, inputs, upstream };
            compared += run.check(&finish(&run), &mut checks);
        }
    }
    checks.finish();
    println!("{compared} tensors");
}

#[test]
fn oracle_follows_the_golden_runs() {
    compare_all(Route::Oracle, |run| run.by_oracle());
}

#[test]
fn trainer_follows_the_golden_runs() {
    compare_all(Route::Cpu, |run| run.by_trainer());
}
