//! NaN and infinity are never laundered: wherever the oracle's result is not finite, the CPU engine's is not either.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::cpu::{CpuModel, CpuOptions};
use mamba_model::oracle::Oracle;
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput, RecurrentState};
use mamba_tests::random::{draws, pick, shaken, wide};

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
const BATCH: usize = 2;
const SEQ_LEN: usize = 19;

/// Named values of the engine and of the oracle.
type Pairs = Vec<(String, Vec<f32>, Vec<f64>)>;

/// Panics where the oracle's value is not finite and the engine's is; returns how many values are not finite.
fn compare(pairs: &Pairs, planted: &str) -> usize {
    for (name, got, want) in pairs {
        assert_eq!(got.len(), want.len());
        let laundered = (0..got.len()).find(|&i| !want[i].is_finite() && got[i].is_finite());
        if let Some(i) = laundered {
            panic!("{planted}: {name}[{i}] is {} in the oracle and {} in the engine", want[i], got[i]);
        }
    }
    pairs.iter().map(|(_, got, _)| got.iter().filter(|v| !v.is_finite()).count()).sum()
}

/// Forward and backward of both with these weights: temporal first, then states and gradients.
fn backbone(config: &ModelConfig, arena: &[f32], input: &[f32], upstream: &[f32]) -> Pairs {
    let input = ModelInput::Dense(input);
    let oracle = Oracle::new(config, wide(arena)).unwrap();
    let trace = oracle.forward(BATCH, input, None, (&[], &[]));
    let want = oracle.backward(&trace, &wide(upstream));
    let mut model = CpuModel::new(config, BATCH, SEQ_LEN, &CpuOptions::default()).unwrap();
    model.refresh(arena).unwrap();
    let mut state = RecurrentState::zeros(&config.backbone, BATCH);
    model.forward(arena, input, None, &mut state).unwrap();
    let (mut grads, mut d_input) = (vec![0.0; arena.len()], vec![0.0; want.input.len()]);
    let temporal = model.temporal().to_vec();
    model.backward(arena, upstream, &mut grads, Some(&mut d_input)).unwrap();
    let mut pairs = vec![
        ("temporal".to_owned(), temporal, trace.temporal),
        ("conv state".to_owned(), state.conv, trace.conv_state),
        ("ssm state".to_owned(), state.ssm, trace.ssm_state),
        ("d_input".to_owned(), d_input, want.input),
    ];
    for p in oracle.table().iter() {
        let name = format!("gradient of {}", p.name);
        pairs.push((name, p.span.of(&grads).to_vec(), p.span.of(&want.params).to_vec()));
    }
    pairs
}

#[test]
fn no_weight_launders_what_is_not_finite() {
    let mut config = MambaConfig::new(9, 2).with_input_dim(3);
    (config.proj_bias, config.d_state) = (true, 5);
    let config = ModelConfig::backbone(config);
    let mut rng = SplitMix64::new(1, "planted");
    let clean = shaken(&config, &mut rng);
    let (input, d) = (draws(&mut rng, BATCH * SEQ_LEN * 3), draws(&mut rng, BATCH * SEQ_LEN * 9));
    assert_eq!(compare(&backbone(&config, clean.arena(), &input, &d), "clean"), 0);
    for p in clean.table().iter() {
        for at in [0, p.span.len / 2, p.span.len - 1] {
            for bad in BAD {
                let mut arena = clean.arena().to_vec();
                arena[p.span.offset + at] = bad;
                let planted = format!("{bad} in {}[{at}]", p.name);
                let pairs = backbone(&config, &arena, &input, &d);
                let count = compare(&pairs, &planted);
                // An infinite A_log or step size makes states forget at once, an infinite gate may close: finite and right.
                let reaches = bad.is_nan() && pairs[0].1.iter().any(|v| v.is_nan()) || !bad.is_nan();
                assert!(reaches && (count > 0 || bad.is_infinite()), "{planted} left no trace");
            }
        }
    }
}

#[test]
fn no_input_launders_what_is_not_finite() {
    let config = ModelConfig::backbone(MambaConfig::new(9, 2));
    let mut rng = SplitMix64::new(2, "planted");
    let weights = shaken(&config, &mut rng);
    let len = BATCH * SEQ_LEN * 9;
    let (clean, d) = (draws(&mut rng, len), draws(&mut rng, len));
    for bad in BAD {
        for _ in 0..8 {
            let at = (rng.next_u64() % len as u64) as usize;
            let mut input = clean.clone();
            input[at] = bad;
            let pairs = backbone(&config, weights.arena(), &input, &d);
            compare(&pairs, &format!("{bad} in input[{at}]"));
            let (row, temporal) = (at / (SEQ_LEN * 9), &pairs[0].1);
            let mut rows = temporal.chunks(SEQ_LEN * 9);
            assert!(rows.nth(row).unwrap().iter().any(|v| !v.is_finite()), "{bad} in input[{at}]");
            let other = temporal.chunks(SEQ_LEN * 9).nth(1 - row).unwrap();
            assert!(other.iter().all(|v| v.is_finite()), "{bad} crosses to the other row");
        }
        // In the gradient that comes from above.
        let mut upstream = d.clone();
        upstream[len / 2] = bad;
        let pairs = backbone(&config, weights.arena(), &clean, &upstream);
        assert!(compare(&pairs, &format!("{bad} from above")) > 0);
    }
}

/// A language model's loss, logits and gradients.
fn language_model(weights: &MambaWeights, arena: &[f32], ids: &[u32], targets: &[i32]) -> Pairs {
    let (config, input) = (weights.config(), ModelInput::Tokens(ids));
    let oracle = Oracle::new(config, wide(arena)).unwrap();
    let trace = oracle.forward(BATCH, input, None, (&[], &[]));
    let (want, want_grads) = oracle.loss_backward(&trace, targets, None, 1.0);
    let mut model = CpuModel::new(config, BATCH, SEQ_LEN, &CpuOptions::default()).unwrap();
    model.refresh(arena).unwrap();
    let mut state = RecurrentState::zeros(&config.backbone, BATCH);
    model.forward(arena, input, None, &mut state).unwrap();
    let want_logits = oracle.logits(&trace);
    let (mut logits, mut grads) = (vec![0.0; want_logits.len()], vec![0.0; arena.len()]);
    model.logits(arena, &mut logits).unwrap();
    let sums = model.loss_backward(arena, targets, None, 1.0, &mut grads).unwrap();
    let mut pairs = vec![
        ("loss".to_owned(), vec![sums.nll as f32], vec![want.nll]),
        ("logits".to_owned(), logits, want_logits),
    ];
    for p in oracle.table().iter() {
        let name = format!("gradient of {}", p.name);
        pairs.push((name, p.span.of(&grads).to_vec(), p.span.of(&want_grads.params).to_vec()));
    }
    pairs
}

#[test]
fn no_loss_launders_what_is_not_finite() {
    for tied in [true, false] {
        let lm = LmHeadConfig { vocab_size: 7, pad_vocab_size_multiple: 4, tied };
        let config = ModelConfig::language_model(MambaConfig::new(9, 1), lm);
        let mut rng = SplitMix64::new(3, "planted");
        let clean = shaken(&config, &mut rng);
        let ids: Vec<u32> = (0..(BATCH * SEQ_LEN) as u32).map(|i| i % 7).collect();
        let targets: Vec<i32> = ids.iter().map(|_| pick(&mut rng, &[0, 3, 6, -100])).collect();
        for p in clean.table().iter() {
            for at in [0, p.span.len / 2, p.span.len - 1] {
                for bad in BAD {
                    let mut arena = clean.arena().to_vec();
                    arena[p.span.offset + at] = bad;
                    let pairs = language_model(&clean, &arena, &ids, &targets);
                    let planted = format!("tied {tied}, {bad} in {}[{at}]", p.name);
                    compare(&pairs, &planted);
                    // The untied embedding has rows that no token reads: those of the padding.
                    let unread = !tied && p.name == "embedding" && at == p.span.len - 1;
                    let seen = pairs[0].1[0].is_nan();
                    assert!(seen || unread || bad.is_infinite(), "{planted} left a finite loss");
                }
            }
        }
    }
}
