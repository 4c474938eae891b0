//! Decoding on the device: token by token, a prompt at once, many rows, states that are handed on.

use super::DTYPES;
use crate::support::Test;
use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use mamba_tests::golden::relative_error;
use mamba_trainer::{Decoder, Device, WeightDtype};

/// (name, test) of decoding.
pub fn trials() -> Vec<(String, Test)> {
    let mut all: Vec<(String, Test)> = Vec::new();
    for (dtype, _) in DTYPES {
        all.push((format!("decode/{dtype}/as_on_the_cpu"), Box::new(move |_| as_on_the_cpu(dtype))));
        all.push((format!("decode/{dtype}/tokens_and_prompt"), Box::new(move |_| tokens_and_prompt(dtype))));
        all.push((format!("decode/{dtype}/one_row_of_64"), Box::new(move |_| one_row_of_64(dtype))));
        all.push((format!("decode/{dtype}/hands_its_state_on"), Box::new(move |_| hands_on(dtype))));
    }
    all
}

const VOCAB: usize = 61;

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn ensure(ok: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what()) }
}

fn weights() -> Result<MambaWeights, String> {
    let config = ModelConfig::language_model(MambaConfig::new(40, 3), LmHeadConfig::new(VOCAB));
    MambaWeights::init(&config, 11).map_err(text)
}

fn ids(seed: u64, n: usize) -> Vec<u32> {
    let mut rng = SplitMix64::new(seed, "decode");
    (0..n).map(|_| (rng.next_u64() % VOCAB as u64) as u32).collect()
}

fn on_gpu(batch: usize, dtype: WeightDtype) -> Result<Decoder, String> {
    Decoder::new(&weights()?, batch, Device::Cuda(0), dtype).map_err(text)
}

fn off(got: &[f32], want: &[f32]) -> f64 {
    let wide: Vec<f64> = want.iter().map(|&w| f64::from(w)).collect();
    relative_error(got, &wide)
}

/// Distance from the CPU's f32. An H200 showed 4.7e-7, 8.8e-4, 1.1e-2, 1.1e-3 (f32, tf32, bf16, f16).
fn bound(dtype: WeightDtype) -> f64 {
    match dtype {
        WeightDtype::F32 => 2e-6,
        WeightDtype::Tf32 => 3e-3,
        WeightDtype::Bf16 => 3e-2,
        WeightDtype::F16 => 3e-3,
    }
}

/// A prompt longer than the decoder's own window, then tokens: as the CPU's f32 decoder.
fn as_on_the_cpu(dtype: WeightDtype) -> Result<(), String> {
    let mut cpu = Decoder::new(&weights()?, 2, Device::Cpu, WeightDtype::F32).map_err(text)?;
    let mut gpu = on_gpu(2, dtype)?;
    let mut worst = 0.0_f64;
    for (step, len) in [300, 1, 1, 1, 5, 1, 256, 1, 257, 1].into_iter().enumerate() {
        let ids = ids(step as u64, 2 * len);
        let want = cpu.prefill(&ids).map_err(text)?;
        worst = worst.max(off(gpu.prefill(&ids).map_err(text)?, want));
    }
    println!("{dtype}: decoding is off the CPU's by {worst:.1e}");
    ensure(worst < bound(dtype), || format!("off by {worst:.1e}"))
}

/// Token by token and the prompt at once agree up to rounding; twice token by token agrees in every bit.
fn tokens_and_prompt(dtype: WeightDtype) -> Result<(), String> {
    let ids = ids(3, 77);
    let whole = on_gpu(1, dtype)?.prefill(&ids).map_err(text)?.to_vec();
    let mut singly = on_gpu(1, dtype)?;
    let run = |decoder: &mut Decoder| -> Result<Vec<f32>, String> {
        let mut last = Vec::new();
        for &id in &ids {
            last = decoder.step(&[id]).map_err(text)?.to_vec();
        }
        Ok(last)
    };
    let first = run(&mut singly)?;
    singly.reset().map_err(text)?;
    let again = run(&mut singly)?;
    ensure(first == again, || "the same tokens after a reset gave other bits".to_owned())?;
    let off = off(&first, &whole);
    println!("{dtype}: token by token is off the whole prompt by {off:.1e}");
    ensure(off < bound(dtype), || format!("off by {off:.1e}"))
}

/// A row alone and the same row among 64 have the same bits, prompt and tokens.
fn one_row_of_64(dtype: WeightDtype) -> Result<(), String> {
    let (mut alone, mut many) = (on_gpu(1, dtype)?, on_gpu(64, dtype)?);
    for (step, len) in [9, 1, 1, 1, 1].into_iter().enumerate() {
        let mut all = ids(step as u64, 64 * len);
        let row = ids(100 + step as u64, len);
        all[37 * len..38 * len].copy_from_slice(&row);
        let want = alone.prefill(&row).map_err(text)?;
        let got = &many.prefill(&all).map_err(text)?[37 * VOCAB..38 * VOCAB];
        ensure(got == want, || format!("call {step}: row 37 of 64 differs from the row alone"))?;
    }
    Ok(())
}

/// Half by one decoder, the other half by another with the first one's state: the bits of one decoder. A refused call
/// leaves the state.
fn hands_on(dtype: WeightDtype) -> Result<(), String> {
    let ids = ids(5, 20);
    let (mut one, mut other) = (on_gpu(1, dtype)?, on_gpu(1, dtype)?);
    one.prefill(&ids[..10]).map_err(text)?;
    ensure(one.prefill(&[VOCAB as u32]).is_err(), || "a token beyond the vocabulary passed".to_owned())?;
    ensure(one.step(&[1, 2]).is_err(), || "two tokens for one row passed".to_owned())?;
    other.load_state(&one.state().map_err(text)?).map_err(text)?;
    for &id in &ids[10..] {
        let (want, got) = (one.step(&[id]).map_err(text)?, other.step(&[id]).map_err(text)?);
        ensure(got == want, || "the handed-on state gave other bits".to_owned())?;
    }
    Ok(())
}
