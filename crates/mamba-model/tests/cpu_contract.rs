//! Wrong calls, wrong buffers, and values that are not finite.

#![allow(clippy::unwrap_used, clippy::panic, clippy::type_complexity)]

use mamba_model::cpu::{CpuDecoder, CpuModel, CpuOptions};
use mamba_model::{
    IGNORE_INDEX, LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelError, ModelInput,
    RecurrentState,
};

fn one_thread() -> CpuOptions {
    CpuOptions { threads: Some(1), recompute: false }
}

fn language_model() -> (ModelConfig, MambaWeights) {
    let config = ModelConfig::language_model(MambaConfig::new(8, 2), LmHeadConfig::new(13));
    let weights = MambaWeights::init(&config, 1).unwrap();
    (config, weights)
}

#[test]
fn sizes_and_threads_are_checked() {
    let (config, weights) = language_model();
    let new = |batch, seq, threads| {
        CpuModel::new(&config, batch, seq, &CpuOptions { threads, recompute: false }).map(|_| ())
    };
    for (batch, seq, threads, field) in [
        (0, 4, None, "batch"),
        (2, 0, None, "seq_len"),
        (2, 4, Some(0), "threads"),
        (1 << 40, 1 << 40, None, "batch"),
    ] {
        match new(batch, seq, threads) {
            Err(ModelError::Config { field: found, .. }) => assert!(found.starts_with(field), "{found}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(CpuDecoder::new(&weights, 0, &one_thread()).is_err());
    let bare = ModelConfig::backbone(MambaConfig::new(8, 1));
    let bare = MambaWeights::init(&bare, 1).unwrap();
    assert!(matches!(CpuDecoder::new(&bare, 1, &one_thread()), Err(ModelError::Unsupported { .. })));
}

#[test]
fn a_refused_call_leaves_the_state() {
    let (config, weights) = language_model();
    let params = weights.arena();
    let mut model = CpuModel::new(&config, 1, 4, &one_thread()).unwrap();
    let mut state = RecurrentState::zeros(&config.backbone, 1);
    state.ssm.fill(0.25);
    let before = state.clone();
    let ids = [1u32, 2, 3, 4];

    let early = model.forward(params, ModelInput::Tokens(&ids), None, &mut state);
    assert!(matches!(early, Err(ModelError::Unsupported { call: "forward", .. })), "no refresh yet");
    model.refresh(params).unwrap();
    assert!(model.refresh(&params[1..]).is_err());
    let bad: [(&[f32], ModelInput<'_>, Option<&[u8]>); 5] = [
        (&params[1..], ModelInput::Tokens(&ids), None),
        (params, ModelInput::Tokens(&ids[1..]), None),
        (params, ModelInput::Tokens(&[1, 2, 13, 4]), None),
        (params, ModelInput::Dense(&[0.0; 32]), None),
        (params, ModelInput::Tokens(&ids), Some(&[0, 0, 0])),
    ];
    for (params, input, reset) in bad {
        assert!(model.forward(params, input, reset, &mut state).is_err());
        assert_eq!(state, before);
    }
    let mut short = RecurrentState::zeros(&config.backbone, 2);
    assert!(model.forward(params, ModelInput::Tokens(&ids), None, &mut short).is_err());
    model.forward(params, ModelInput::Tokens(&ids), None, &mut state).unwrap();
    assert_ne!(state, before);
}

#[test]
fn one_forward_feeds_one_backward() {
    let (config, weights) = language_model();
    let params = weights.arena();
    let mut model = CpuModel::new(&config, 1, 4, &one_thread()).unwrap();
    model.refresh(params).unwrap();
    let mut grads = vec![0.0; params.len()];
    let targets = [1, 2, 3, 4];
    assert!(model.loss_backward(params, &targets, None, 1.0, &mut grads).is_err());
    assert!(model.loss(params, &targets, None).is_err());
    let mut state = RecurrentState::zeros(&config.backbone, 1);
    let ids = [1u32, 2, 3, 4];
    model.forward(params, ModelInput::Tokens(&ids), None, &mut state).unwrap();
    for bad in [[1, 2, 3, 13], [1, 2, 3, -1], [1, 2, 3, i32::MIN]] {
        let err = model.loss_backward(params, &bad, None, 1.0, &mut grads);
        assert!(matches!(err, Err(ModelError::Token { index: 3, vocab_size: 13, .. })), "{err:?}");
    }
    assert!(model.loss_backward(params, &targets, Some(&[1.0]), 1.0, &mut grads).is_err());
    assert!(model.backward(params, &[0.0; 31], &mut grads, None).is_err());
    let mut d_input = vec![0.0; 32];
    assert!(model.backward(params, &[0.0; 32], &mut grads, Some(&mut d_input)).is_err());
    assert!(grads.iter().all(|&g| g == 0.0), "refused calls wrote nothing");

    let first = model.loss(params, &targets, None).unwrap();
    let sums = model.loss_backward(params, &targets, None, 1.0, &mut grads).unwrap();
    assert_eq!(first, sums);
    assert!(model.loss_backward(params, &targets, None, 1.0, &mut grads).is_err(), "used up");
    model.forward(params, ModelInput::Tokens(&ids), None, &mut state).unwrap();
    model.refresh(params).unwrap();
    assert!(model.backward(params, &[0.0; 32], &mut grads, None).is_err(), "other weights since");
}

#[test]
fn ignored_targets_and_weights() {
    let (config, weights) = language_model();
    let params = weights.arena();
    let mut model = CpuModel::new(&config, 1, 4, &one_thread()).unwrap();
    model.refresh(params).unwrap();
    let mut run = |targets: &[i32], w: Option<&[f32]>| {
        let mut grads = vec![0.0; params.len()];
        let mut state = RecurrentState::zeros(&config.backbone, 1);
        model.forward(params, ModelInput::Tokens(&[1, 2, 3, 4]), None, &mut state).unwrap();
        (model.loss_backward(params, targets, w, 1.0, &mut grads).unwrap(), grads)
    };
    let (all, _) = run(&[5, 6, 7, 8], None);
    assert_eq!((all.tokens, all.weight), (4, 4.0));
    // Untrained: close to ln 13.
    assert!((all.mean() - 13f64.ln()).abs() < 0.2, "{}", all.mean());
    let (ignored, a) = run(&[5, IGNORE_INDEX, 7, IGNORE_INDEX], None);
    let (weighted, b) = run(&[5, 6, 7, 8], Some(&[1.0, 0.0, 1.0, 0.0]));
    assert_eq!((ignored.tokens, weighted.tokens), (2, 4));
    assert_eq!((ignored.nll, ignored.weight), (weighted.nll, weighted.weight));
    assert_eq!(a, b);
    let (nothing, zero) = run(&[IGNORE_INDEX; 4], None);
    assert_eq!((nothing.tokens, nothing.nll), (0, 0.0));
    assert!(nothing.mean().is_nan() && zero.iter().all(|&g| g == 0.0));
}

/// One NaN in any weight reaches the loss and the gradient; an infinite logit too.
#[test]
fn non_finite_values_are_never_laundered() {
    let mut backbone = MambaConfig::new(8, 2);
    backbone.proj_bias = true;
    let lm = LmHeadConfig { tied: false, ..LmHeadConfig::new(13) };
    let config = ModelConfig::language_model(backbone, lm);
    let weights = MambaWeights::init(&config, 1).unwrap();
    for p in weights.table().iter() {
        for value in [f32::NAN, f32::INFINITY] {
            let mut params = weights.arena().to_vec();
            params[p.span.offset + p.span.len / 2] = value;
            let ids: Vec<u32> = (0..13).collect();
            let targets: Vec<i32> = (0..13).collect();
            let mut model = CpuModel::new(&config, 1, 13, &one_thread()).unwrap();
            model.refresh(&params).unwrap();
            let mut state = RecurrentState::zeros(&config.backbone, 1);
            model.forward(&params, ModelInput::Tokens(&ids), None, &mut state).unwrap();
            let mut grads = vec![0.0; params.len()];
            let sums = model.loss_backward(&params, &targets, None, 1.0, &mut grads).unwrap();
            // exp(-exp(inf)) = 0 is a fair decay, and Δ = softplus(-inf) = 0 too: only NaN must show in A_log.
            if value.is_nan() || p.name.contains("proj.weight") || p.name == "lm_head" {
                assert!(!sums.nll.is_finite(), "{}: {value} lost in the loss", p.name);
                assert!(grads.iter().any(|g| !g.is_finite()), "{}: {value} lost in the gradient", p.name);
            }
        }
    }
}
