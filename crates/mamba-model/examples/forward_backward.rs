//! One training window of a small language model on the CPU, by hand: forward, loss, backward, a plain gradient step,
//! repeated; then the model continues a prompt.
//!
//! `cargo run --release -p mamba-model --example forward_backward`

use mamba_model::cpu::{CpuDecoder, CpuModel, CpuOptions};
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelInput, RecurrentState, Result};

const TEXT: &[u8] = b"state space models read left to right, and remember. ";

fn main() -> Result<()> {
    let (batch, seq_len) = (1, TEXT.len() - 1);
    let config = ModelConfig::language_model(MambaConfig::new(32, 2), LmHeadConfig::new(256));
    let mut params = MambaWeights::init(&config, 7)?.into_arena();
    let mut grads = vec![0.0f32; params.len()];
    let mut model = CpuModel::new(&config, batch, seq_len, &CpuOptions::default())?;

    let inputs: Vec<u32> = TEXT[..seq_len].iter().map(|&b| u32::from(b)).collect();
    let targets: Vec<i32> = TEXT[1..].iter().map(|&b| i32::from(b)).collect();
    for step in 0..200 {
        let mut state = RecurrentState::zeros(&config.backbone, batch);
        grads.fill(0.0);
        model.refresh(&params)?;
        model.forward(&params, ModelInput::Tokens(&inputs), None, &mut state)?;
        let scale = 1.0 / targets.len() as f32;
        let loss = model.loss_backward(&params, &targets, None, scale, &mut grads)?;
        let norm = grads.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
        if step % 40 == 0 {
            println!("step {step:3}  loss {:.4} nats  gradient norm {norm:.3}", loss.mean());
        }
        // A gradient step of bounded length; mamba-optim has AdamW.
        let rate = 0.5 / norm.max(1.0) as f32;
        params.iter_mut().zip(&grads).for_each(|(p, g)| *p -= rate * g);
    }

    let weights = MambaWeights::from_arena(&config, params)?;
    let mut decoder = CpuDecoder::new(&weights, batch, &CpuOptions::default())?;
    let prompt: Vec<u32> = TEXT[..6].iter().map(|&b| u32::from(b)).collect();
    let mut text = TEXT[..6].to_vec();
    let mut next = argmax(decoder.prefill(&prompt)?);
    for _ in 6..TEXT.len() {
        text.push(next as u8);
        next = argmax(decoder.step(&[next])?);
    }
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(i, _)| i as u32)
}
