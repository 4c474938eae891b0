//! Forward and backward of whole backbones over three windows with carried state: the oracle and the CPU engine.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::cpu::{CpuModel, CpuOptions};
use mamba_model::oracle::Oracle;
use mamba_model::{ModelInput, RecurrentState};
use mamba_tests::golden::Case;
use mamba_tests::golden_model::{CASES, Outcome, weights_of, window};
use mamba_tests::tolerance::{Checks, Route};

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
            outcome.check(&mut checks, "tbptt", &case, oracle.table(), index);
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
            outcome.check(&mut checks, "tbptt", &case, weights.table(), index);
        }
    }
    checks.finish();
}
