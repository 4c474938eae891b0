//! What must be equal bit for bit in the CPU engine.

#![allow(clippy::unwrap_used)]

use mamba_model::cpu::{CpuDecoder, CpuModel, CpuOptions};
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput, RecurrentState};

fn options(threads: usize) -> CpuOptions {
    CpuOptions { threads: Some(threads), recompute: false }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = SplitMix64::new(seed, "noise");
    (0..len).map(|_| rng.normal() as f32).collect()
}

fn tokens(seed: u64, len: usize, vocab: usize) -> Vec<u32> {
    let mut rng = SplitMix64::new(seed, "tokens");
    (0..len).map(|_| (rng.next_u64() % vocab as u64) as u32).collect()
}

/// Everything that one window of training gives.
#[derive(Debug, PartialEq)]
struct Outcome {
    temporal: Vec<u32>,
    grads: Vec<u32>,
    d_input: Vec<u32>,
    conv: Vec<u32>,
    ssm: Vec<u32>,
}

fn train(
    weights: &MambaWeights,
    batch: usize,
    seq: usize,
    x: &[f32],
    reset: Option<&[u8]>,
    options: &CpuOptions,
) -> Outcome {
    let mut model = CpuModel::new(weights.config(), batch, seq, options).unwrap();
    model.refresh(weights.arena()).unwrap();
    let mut state = RecurrentState::zeros(&weights.config().backbone, batch);
    state.conv = noise(3, state.conv.len());
    state.ssm = noise(4, state.ssm.len());
    model.forward(weights.arena(), ModelInput::Dense(x), reset, &mut state).unwrap();
    let mut grads = vec![0.0; weights.arena().len()];
    let mut d_input = vec![0.0; x.len()];
    let d_temporal = noise(5, model.temporal().len());
    let temporal = bits(model.temporal());
    model.backward(weights.arena(), &d_temporal, &mut grads, Some(&mut d_input)).unwrap();
    Outcome {
        temporal,
        grads: bits(&grads),
        d_input: bits(&d_input),
        conv: bits(&state.conv),
        ssm: bits(&state.ssm),
    }
}

fn odd_configs() -> Vec<MambaConfig> {
    let mut wide = MambaConfig::new(40, 2).with_input_dim(7);
    (wide.expand, wide.d_conv, wide.proj_bias) = (3, 4, true);
    let mut odd = MambaConfig::new(23, 2);
    (odd.d_state, odd.d_conv, odd.conv_bias, odd.dt_rank) = (5, 3, false, Some(3));
    let mut tiny = MambaConfig::new(1, 1);
    (tiny.d_state, tiny.d_conv, tiny.expand) = (1, 1, 1);
    vec![wide, odd, tiny]
}

#[test]
fn thread_counts_change_nothing() {
    for backbone in odd_configs() {
        let weights = MambaWeights::init(&ModelConfig::backbone(backbone.clone()), 1).unwrap();
        let (batch, seq) = (3, 85);
        let x = noise(2, batch * seq * backbone.input_width());
        let reset: Vec<u8> = (0..batch * seq).map(|i| u8::from(i % 37 == 5)).collect();
        let one = train(&weights, batch, seq, &x, Some(&reset), &options(1));
        for threads in [2, 3, 7] {
            assert!(one == train(&weights, batch, seq, &x, Some(&reset), &options(threads)), "{threads}");
        }
        assert!(one == train(&weights, batch, seq, &x, Some(&reset), &CpuOptions::default()), "global pool");
    }
}

#[test]
fn recomputing_changes_nothing_but_memory() {
    for backbone in odd_configs() {
        let config = ModelConfig::backbone(backbone.clone());
        let weights = MambaWeights::init(&config, 1).unwrap();
        let (batch, seq) = (2, 70);
        let x = noise(2, batch * seq * backbone.input_width());
        let keep = train(&weights, batch, seq, &x, None, &options(2));
        let recompute = CpuOptions { threads: Some(2), recompute: true };
        assert!(keep == train(&weights, batch, seq, &x, None, &recompute));
    }
    let config = ModelConfig::backbone(MambaConfig::new(32, 6));
    let bytes = |recompute| {
        let options = CpuOptions { threads: Some(1), recompute };
        CpuModel::new(&config, 4, 128, &options).unwrap().memory_bytes()
    };
    assert!(5 * bytes(true) < 3 * bytes(false), "{} {}", bytes(true), bytes(false));
}

/// Windows of 1, 1, 2, 3, 5 tokens with carried state equal one window of 12.
#[test]
fn windows_equal_the_whole() {
    for d_conv in 1..=8 {
        let mut backbone = MambaConfig::new(12, 2);
        (backbone.d_conv, backbone.d_state) = (d_conv, 6);
        let weights = MambaWeights::init(&ModelConfig::backbone(backbone.clone()), d_conv as u64).unwrap();
        let (batch, total, width) = (2, 12, 12);
        let x = noise(9, batch * total * width);
        let run = |windows: &[usize]| {
            let mut state = RecurrentState::zeros(&backbone, batch);
            let mut rows = vec![Vec::new(); batch];
            let mut at = 0;
            for &seq in windows {
                let mut model = CpuModel::new(weights.config(), batch, seq, &options(2)).unwrap();
                model.refresh(weights.arena()).unwrap();
                let part: Vec<f32> = x
                    .chunks(total * width)
                    .flat_map(|row| &row[at * width..(at + seq) * width])
                    .copied()
                    .collect();
                model.forward(weights.arena(), ModelInput::Dense(&part), None, &mut state).unwrap();
                for (row, out) in rows.iter_mut().zip(model.temporal().chunks(seq * width)) {
                    row.extend(bits(out));
                }
                at += seq;
            }
            (rows, bits(&state.conv), bits(&state.ssm))
        };
        assert!(run(&[12]) == run(&[1, 1, 2, 3, 5]), "d_conv {d_conv}");
    }
}

#[test]
fn a_row_does_not_see_the_batch() {
    let backbone = MambaConfig::new(20, 2);
    let weights = MambaWeights::init(&ModelConfig::backbone(backbone.clone()), 1).unwrap();
    let (batch, seq, width) = (64, 9, 20);
    let x = noise(2, batch * seq * width);
    let run = |batch: usize, x: &[f32]| {
        let mut model = CpuModel::new(weights.config(), batch, seq, &options(2)).unwrap();
        model.refresh(weights.arena()).unwrap();
        let mut state = RecurrentState::zeros(&backbone, batch);
        model.forward(weights.arena(), ModelInput::Dense(x), None, &mut state).unwrap();
        bits(model.temporal())
    };
    let all = run(batch, &x);
    for row in [0, 1, 37, 63] {
        let part = row * seq * width..(row + 1) * seq * width;
        assert!(all[part.clone()] == run(1, &x[part]), "row {row}");
    }
}

/// Two documents in one row give what each gives alone, forward and (in exact order) backward through the input.
#[test]
fn packed_documents_equal_separate_ones() {
    let mut backbone = MambaConfig::new(16, 2);
    backbone.d_conv = 5;
    let weights = MambaWeights::init(&ModelConfig::backbone(backbone.clone()), 1).unwrap();
    let (cut, seq, width) = (19, 50, 16);
    let x = noise(2, seq * width);
    let d_temporal = noise(3, seq * width);
    let run = |from: usize, to: usize, reset: Option<&[u8]>, dirty: bool| {
        let mut model = CpuModel::new(weights.config(), 1, to - from, &options(2)).unwrap();
        model.refresh(weights.arena()).unwrap();
        let mut state = RecurrentState::zeros(&backbone, 1);
        if dirty {
            state.conv.fill(f32::NAN);
            state.ssm.fill(f32::INFINITY);
        }
        let x = &x[from * width..to * width];
        model.forward(weights.arena(), ModelInput::Dense(x), reset, &mut state).unwrap();
        let mut grads = vec![0.0; weights.arena().len()];
        let mut d_input = vec![0.0; x.len()];
        let temporal = bits(model.temporal());
        let dy = &d_temporal[from * width..to * width];
        model.backward(weights.arena(), dy, &mut grads, Some(&mut d_input)).unwrap();
        (temporal, bits(&d_input), grads, bits(&state.conv), bits(&state.ssm))
    };
    let mut reset = vec![0; seq];
    (reset[0], reset[cut]) = (1, 1);
    // A reset first token hides even a non-finite carried state.
    let packed = run(0, seq, Some(&reset), true);
    let (first, second) = (run(0, cut, None, false), run(cut, seq, None, false));
    assert!(packed.0 == [first.0, second.0].concat());
    assert!(packed.1 == [first.1, second.1].concat());
    assert!(packed.3 == second.3 && packed.4 == second.4);
    let sum = first.2.iter().zip(&second.2).map(|(a, b)| f64::from(a + b));
    let (mut error, mut size) = (0.0, 0.0);
    for (p, s) in packed.2.iter().zip(sum) {
        error += (f64::from(*p) - s).powi(2);
        size += s * s;
    }
    // Sums of gradients fall into other blocks. Measured 1.1e-7.
    assert!((error / size).sqrt() < 5e-7, "{:.1e}", (error / size).sqrt());
}

/// A document that starts within the last d_conv - 1 tokens leaves no older samples in the carried window.
#[test]
fn a_late_reset_cleans_the_carried_window() {
    let mut backbone = MambaConfig::new(8, 1);
    backbone.d_conv = 6;
    let weights = MambaWeights::init(&ModelConfig::backbone(backbone.clone()), 1).unwrap();
    let (x, y) = (noise(2, 10 * 8), noise(3, 4 * 8));
    let run = |from: usize| {
        let mut model = CpuModel::new(weights.config(), 1, 10 - from, &options(1)).unwrap();
        model.refresh(weights.arena()).unwrap();
        let mut reset = vec![0; 10 - from];
        reset[8 - from] = 1;
        let mut state = RecurrentState::zeros(&backbone, 1);
        let window = ModelInput::Dense(&x[from * 8..]);
        model.forward(weights.arena(), window, Some(&reset), &mut state).unwrap();
        let mut next = CpuModel::new(weights.config(), 1, 4, &options(1)).unwrap();
        next.refresh(weights.arena()).unwrap();
        next.forward(weights.arena(), ModelInput::Dense(&y), None, &mut state).unwrap();
        bits(next.temporal())
    };
    assert!(run(0) == run(8));
}

#[test]
fn token_by_token_equals_the_whole() {
    let mut backbone = MambaConfig::new(24, 2);
    backbone.d_state = 9;
    let config = ModelConfig::language_model(backbone.clone(), LmHeadConfig::new(61));
    let weights = MambaWeights::init(&config, 1).unwrap();
    let (batch, seq, rows) = (3, 150, 61);
    let ids = tokens(2, batch * seq, rows);
    let mut model = CpuModel::new(&config, batch, seq, &options(2)).unwrap();
    model.refresh(weights.arena()).unwrap();
    let mut state = RecurrentState::zeros(&backbone, batch);
    model.forward(weights.arena(), ModelInput::Tokens(&ids), None, &mut state).unwrap();
    let mut logits = vec![0.0; batch * seq * rows];
    model.logits(weights.arena(), &mut logits).unwrap();
    let at = |t: usize| -> Vec<u32> {
        (0..batch).flat_map(|b| bits(&logits[(b * seq + t) * rows..][..rows])).collect()
    };

    let mut decoder = CpuDecoder::new(&weights, batch, &options(2)).unwrap();
    let column = |t: usize| -> Vec<u32> { (0..batch).map(|b| ids[b * seq + t]).collect() };
    for t in 0..seq {
        assert!(bits(decoder.step(&column(t)).unwrap()) == at(t), "token {t}");
    }
    assert!(decoder.state() == &state);

    decoder.reset();
    let prompt: Vec<u32> = (0..batch).flat_map(|b| &ids[b * seq..][..131]).copied().collect();
    assert!(bits(decoder.prefill(&prompt).unwrap()) == at(130), "prompt of 131");
    let middle = decoder.state().clone();
    for t in 131..seq {
        assert!(bits(decoder.step(&column(t)).unwrap()) == at(t), "token {t} after the prompt");
    }
    decoder.load_state(&middle).unwrap();
    assert!(bits(decoder.step(&column(131)).unwrap()) == at(131));
}

/// Gradients add up: two backward passes into one arena equal the sum of two.
#[test]
fn gradients_accumulate() {
    let backbone = MambaConfig::new(16, 1);
    let config = ModelConfig::language_model(backbone.clone(), LmHeadConfig::new(30));
    let weights = MambaWeights::init(&config, 1).unwrap();
    let mut model = CpuModel::new(&config, 2, 10, &options(2)).unwrap();
    model.refresh(weights.arena()).unwrap();
    let mut run = |seed: u64, grads: &mut [f32]| {
        let ids = tokens(seed, 20, 30);
        let targets: Vec<i32> = ids.iter().map(|&i| (i as i32 * 7 + 1) % 30).collect();
        let mut state = RecurrentState::zeros(&backbone, 2);
        model.forward(weights.arena(), ModelInput::Tokens(&ids), None, &mut state).unwrap();
        model.loss_backward(weights.arena(), &targets, None, 1.0, grads).unwrap();
    };
    let mut both = vec![0.0; weights.arena().len()];
    let mut apart = [both.clone(), both.clone()];
    run(1, &mut both);
    run(2, &mut both);
    run(1, &mut apart[0]);
    run(2, &mut apart[1]);
    let worst =
        both.iter().zip(&apart[0]).zip(&apart[1]).map(|((b, x), y)| (b - (x + y)).abs()).fold(0.0, f32::max);
    let largest = both.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    // Measured 4.8e-7 of a largest gradient of 11.4.
    assert!(worst < 1e-7 * largest, "{worst} of {largest}");
}
