//! Breaks a run off, resumes it from its file in a new trainer, and shows that it continues bit for bit; with the
//! weights alone it would not.
//!
//! `cargo run --release -p mamba-trainer --example resume`

use mamba_trainer::{
    MambaConfig, MambaTrainer, MambaWeights, ModelConfig, Result, TrainSessionCfg, TrainingState,
};

const BATCH: usize = 2;
const SEQ_LEN: usize = 16;
const WIDTH: usize = 12;

fn window(step: u64) -> (Vec<f32>, Vec<f32>) {
    let mut rng = mamba_model::rng::SplitMix64::new(step, "resume");
    let mut draw = || (0..BATCH * SEQ_LEN * WIDTH).map(|_| rng.normal() as f32).collect();
    (draw(), draw())
}

fn run(trainer: &mut MambaTrainer, steps: std::ops::Range<u64>) -> Result<()> {
    for step in steps {
        let (input, d_temporal) = window(step);
        trainer.step(&input, &d_temporal)?;
    }
    Ok(())
}

/// A fingerprint of the weights' bits.
fn fingerprint(trainer: &mut MambaTrainer) -> Result<u64> {
    let weights = trainer.snapshot_master()?;
    let fold = |h: u64, w: &f32| (h ^ u64::from(w.to_bits())).wrapping_mul(0x0000_0100_0000_01b3);
    Ok(weights.arena().iter().fold(0xcbf2_9ce4_8422_2325, fold))
}

fn main() -> Result<()> {
    let session = TrainSessionCfg::new(WIDTH, BATCH, SEQ_LEN);
    let weights = MambaWeights::init(&ModelConfig::backbone(MambaConfig::new(WIDTH, 2)), 1)?;
    let mut unbroken = MambaTrainer::builder(weights, session).build()?;
    let path = std::env::temp_dir().join(format!("mamba-trainer-resume-{}.state", std::process::id()));

    run(&mut unbroken, 0..10)?;
    // The last argument is the caller's own: here, the next step of the data.
    unbroken.save_state(&path, &10u64.to_le_bytes())?;
    let at_save = unbroken.snapshot_master()?;
    run(&mut unbroken, 10..20)?;

    let state = TrainingState::read(&path)?;
    let next = state.user.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut resumed = MambaTrainer::builder(state.weights.clone(), state.session).build()?;
    resumed.load_training_state(&state)?;
    run(&mut resumed, next..20)?;

    let mut weights_only = MambaTrainer::builder(at_save, session).build()?;
    run(&mut weights_only, next..20)?;

    println!("unbroken      {:016x}", fingerprint(&mut unbroken)?);
    println!("resumed       {:016x}", fingerprint(&mut resumed)?);
    println!("weights only  {:016x}", fingerprint(&mut weights_only)?);
    if let Err(error) = std::fs::remove_file(&path) {
        eprintln!("{}: {error}", path.display());
    }
    Ok(())
}
