//! The number of threads does not show in any bit.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::rng::SplitMix64;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use mamba_tests::contract::{Snapshot, assert_same, snapshot};
use mamba_trainer::{Device, LmTrainer, MambaTrainer, StepOpts, TokenBatch, TrainSessionCfg};

const BATCH: usize = 3;
const SEQ_LEN: usize = 70;

fn opts() -> StepOpts {
    StepOpts::new().with_clip_max_norm(0.5).with_control_clip_max_norm(0.05).with_step_skip_above(1e6)
}

/// Wide enough that every parallel loop is cut into several pieces: the arena has over 60,000 elements.
fn backbone(threads: Option<usize>) -> Snapshot {
    let model =
        ModelConfig::backbone(MambaConfig { d_state: 5, ..MambaConfig::new(72, 2).with_input_dim(7) });
    let weights = MambaWeights::init(&model, 1).unwrap();
    assert!(weights.arena().len() > 60_000);
    let builder = MambaTrainer::builder(weights, TrainSessionCfg::new(7, BATCH, SEQ_LEN))
        .device(Device::Cpu)
        .step_opts(opts())
        .input_gradient(true);
    let mut t = threads.map_or(builder.clone(), |n| builder.threads(n)).build().unwrap();
    for i in 0..3 {
        let mut rng = SplitMix64::new(i, "threads");
        let mut draw = |n: usize| (0..n).map(|_| rng.normal() as f32).collect::<Vec<_>>();
        let (input, d) = (draw(BATCH * SEQ_LEN * 7), draw(BATCH * SEQ_LEN * 72));
        t.step(&input, &d).unwrap();
    }
    snapshot(&mut t)
}

fn language_model(threads: Option<usize>) -> (Snapshot, u64) {
    let model = ModelConfig::language_model(MambaConfig::new(40, 2), LmHeadConfig::new(300));
    let weights = MambaWeights::init(&model, 2).unwrap();
    let builder = LmTrainer::builder(weights, BATCH, SEQ_LEN).device(Device::Cpu).step_opts(opts());
    let mut t = threads.map_or(builder.clone(), |n| builder.threads(n)).build().unwrap();
    let mut loss = 0.0;
    for i in 0..3 {
        let mut rng = SplitMix64::new(i, "tokens");
        let ids: Vec<u32> = (0..BATCH * SEQ_LEN).map(|_| (rng.next_u64() % 300) as u32).collect();
        let targets: Vec<i32> = ids.iter().rev().map(|&id| id as i32).collect();
        loss = t.step(&TokenBatch::new(&ids, &targets)).unwrap().loss;
    }
    (snapshot(&mut t), loss.to_bits())
}

#[test]
fn one_two_three_and_seven_threads_give_the_same_bits() {
    let (want, (lm, loss)) = (backbone(Some(1)), language_model(Some(1)));
    for threads in [Some(2), Some(3), Some(7), None] {
        let what = format!("{threads:?} threads");
        assert_same(&want, &backbone(threads), &what);
        let (got, got_loss) = language_model(threads);
        assert_same(&lm, &got, &what);
        assert_eq!(loss, got_loss, "{what}");
    }
}
