//! Random weights, inputs and states.
#![allow(clippy::unwrap_used)]

use mamba_model::rng::SplitMix64;
use mamba_model::{MambaConfig, MambaWeights, ModelConfig, RecurrentState};

/// Normal numbers.
pub fn draws(rng: &mut SplitMix64, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal() as f32).collect()
}

/// One of `choices`.
pub fn pick<T: Copy>(rng: &mut SplitMix64, choices: &[T]) -> T {
    choices[(rng.next_u64() % choices.len() as u64) as usize]
}

/// Initial weights, every tensor moved off its symmetric start; panics at a bad config.
pub fn shaken(config: &ModelConfig, rng: &mut SplitMix64) -> MambaWeights {
    let weights = MambaWeights::init(config, 3).unwrap();
    let mut arena = weights.arena().to_vec();
    for p in weights.table().iter() {
        p.span.of_mut(&mut arena).iter_mut().for_each(|w| *w += 0.1 * rng.normal() as f32);
    }
    MambaWeights::from_arena(config, arena).unwrap()
}

/// A state as some window before may have left it.
pub fn random_state(config: &MambaConfig, batch: usize, rng: &mut SplitMix64) -> RecurrentState {
    let (conv, ssm) = RecurrentState::lengths(config, batch);
    RecurrentState { conv: draws(rng, conv), ssm: draws(rng, ssm) }
}

/// The same values in f64.
pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}
