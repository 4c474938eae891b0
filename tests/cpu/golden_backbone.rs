//! Forward and backward of whole backbones over three windows with carried state: the oracle and the CPU engine.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::cpu::{CpuModel, CpuOptions};
use mamba_model::oracle::Oracle;
use mamba_model::{ModelInput, ParamTable, RecurrentState};
use mamba_tests::golden::Case;
use mamba_tests::golden_model::{CASES, Sizes, own_name, tensor_kind, weights_of};
use mamba_tests::tolerance::{Checks, Route};

/// Window `index` of a golden backbone, input and upstream gradient.
fn window<'a, T>(all: (&'a [T], &'a [T]), sizes: &Sizes, index: usize) -> (&'a [T], &'a [T]) {
    let (input, temporal) = (sizes.input_len(), sizes.temporal_len());
    (&all.0[index * input..][..input], &all.1[index * temporal..][..temporal])
}

/// What a window gives.
struct Outcome<'a, T> {
    temporal: &'a [T],
    conv: &'a [T],
    ssm: &'a [T],
    d_input: &'a [T],
    grads: &'a [T],
}

impl<T: Copy + Into<f64>> Outcome<'_, T> {
    fn check(&self, checks: &mut Checks, case: &Case, table: &ParamTable, index: usize) {
        let pairs = [
            ("temporal", self.temporal),
            ("conv_state_out", self.conv),
            ("ssm_state_out", self.ssm),
            ("d_input", self.d_input),
        ];
        for (name, got) in pairs {
            case.check(checks, &format!("tbptt/{name}"), &format!("tbptt/{index}/{name}"), got);
        }
        let mut compared = 0;
        for golden in case.names().filter_map(|n| n.strip_prefix(&format!("tbptt/{index}/grad/"))) {
            let span = table.get(&own_name(golden)).unwrap().span;
            let quantity = format!("tbptt/grad/{}", tensor_kind(golden));
            case.check(checks, &quantity, &format!("tbptt/{index}/grad/{golden}"), span.of(self.grads));
            compared += 1;
        }
        // The gradients of one window are left out where the file would be large.
        let left_out = case.name.ends_with("backbone_04") && index == 1;
        let tensors = case.names().filter(|n| n.starts_with("param/")).count();
        assert_eq!(compared, if left_out { 0 } else { tensors }, "{} window {index}", case.name);
    }
}

#[test]
fn oracle_follows_the_golden_windows() {
    let mut checks = Checks::new(Route::Oracle);
    for name in CASES {
        let case = Case::read(&format!("backbone/{name}"));
        let (weights, sizes) = weights_of(&case);
        let params = weights.arena().iter().map(|&w| f64::from(w)).collect();
        let oracle = Oracle::new(weights.config(), params).unwrap();
        let (inputs, upstream) = (case.f32("windows/input"), case.f32("windows/d_temporal"));
        let (mut conv, mut ssm) = (case.get("state0/conv").to_vec(), case.get("state0/ssm").to_vec());
        for index in 0..3 {
            let (input, d) = window((&inputs, &upstream), &sizes, index);
            let trace = oracle.forward(sizes.batch, ModelInput::Dense(input), None, (&conv, &ssm));
            let d: Vec<f64> = d.iter().map(|&d| f64::from(d)).collect();
            let grads = oracle.backward(&trace, &d);
            let outcome = Outcome {
                temporal: &trace.temporal,
                conv: &trace.conv_state,
                ssm: &trace.ssm_state,
                d_input: &grads.input,
                grads: &grads.params,
            };
            outcome.check(&mut checks, &case, oracle.table(), index);
            (conv, ssm) = (trace.conv_state, trace.ssm_state);
        }
    }
    checks.finish();
}

#[test]
fn engine_follows_the_golden_windows() {
    let mut checks = Checks::new(Route::Cpu);
    for name in CASES {
        let case = Case::read(&format!("backbone/{name}"));
        let (weights, sizes) = weights_of(&case);
        let options = CpuOptions { threads: Some(2), ..CpuOptions::default() };
        let mut model = CpuModel::new(weights.config(), sizes.batch, sizes.seq_len, &options).unwrap();
        model.refresh(weights.arena()).unwrap();
        let (inputs, upstream) = (case.f32("windows/input"), case.f32("windows/d_temporal"));
        let mut state = RecurrentState { conv: case.f32("state0/conv"), ssm: case.f32("state0/ssm") };
        for index in 0..3 {
            let (input, d) = window((&inputs, &upstream), &sizes, index);
            model.forward(weights.arena(), ModelInput::Dense(input), None, &mut state).unwrap();
            let (mut grads, mut d_input) = (vec![0.0; weights.arena().len()], vec![0.0; input.len()]);
            model.backward(weights.arena(), d, &mut grads, Some(&mut d_input)).unwrap();
            let outcome = Outcome {
                temporal: model.temporal(),
                conv: &state.conv,
                ssm: &state.ssm,
                d_input: &d_input,
                grads: &grads,
            };
            outcome.check(&mut checks, &case, weights.table(), index);
        }
    }
    checks.finish();
}
