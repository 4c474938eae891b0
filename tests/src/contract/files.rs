//! The training-state file.

use super::{Batch, Target, Tokens, assert_same, assert_same_but, snapshot};
use mamba_model::{MambaWeights, ModelConfig};
use mamba_trainer::{LmTrainer, MambaTrainer, StepOpts, TrainSessionCfg, TrainerError, TrainingState};

fn trained(target: &Target) -> MambaTrainer {
    let mut t = target.backbone();
    t.set_step_opts(StepOpts::new().with_clip_max_norm(1.0)).unwrap();
    t.set_reference_no_decay(false).unwrap();
    for i in 0..3 {
        t.set_lr(1e-3 / (i + 1) as f64).unwrap();
        let batch = Batch::new(i);
        t.step(&batch.input, &batch.d_temporal).unwrap();
    }
    t
}

pub fn a_state_file_round_trips(target: &Target) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.state");
    let mut t = trained(target);
    let user: Vec<u8> = (0..=255).collect();
    t.save_state(&path, &user).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    t.save_state(&path, &user).unwrap();
    assert!(bytes == std::fs::read(&path).unwrap(), "the same state, the same bytes");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");

    let mut other = target.backbone();
    assert_eq!(other.load_state(&path).unwrap(), user);
    assert_same_but(&snapshot(&mut t), &snapshot(&mut other), &["grads", "outcome"], "loaded");
    for t in [&mut t, &mut other] {
        let batch = Batch::new(9);
        t.step(&batch.input, &batch.d_temporal).unwrap();
    }
    assert_same_but(&snapshot(&mut t), &snapshot(&mut other), &["outcome"], "continued");

    let mut lm = target.lm(false);
    lm.step(&Tokens::new(1).batch()).unwrap();
    lm.save_state(&path, b"").unwrap();
    let state = TrainingState::read(&path).unwrap();
    assert!(state == lm.training_state(b"").unwrap());
    let mut resumed: LmTrainer = target.lm_builder(state.weights.clone()).build().unwrap();
    resumed.load_training_state(&state).unwrap();
    let next = |t: &mut LmTrainer| {
        t.step(&Tokens::new(2).batch()).unwrap();
        t.last_metrics().unwrap().unwrap()
    };
    let (a, b) = (next(&mut lm), next(&mut resumed));
    assert_eq!((a.loss.to_bits(), a.step), (b.loss.to_bits(), b.step));
}

fn field_of(error: &TrainerError) -> &str {
    match error {
        TrainerError::StateFile { field, .. } => field,
        other => panic!("{other}"),
    }
}

pub fn a_bad_file_leaves_the_trainer_alone(target: &Target) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.state");
    let mut t = trained(target);
    t.save_state(&path, b"user bytes").unwrap();
    let good = std::fs::read(&path).unwrap();
    let before = snapshot(&mut t);
    let mut refused = |bytes: &[u8], what: &str| {
        std::fs::write(&path, bytes).unwrap();
        let error = t.load_state(&path).expect_err(what);
        assert_same(&before, &snapshot(&mut t), what);
        assert!(error.to_string().contains("run.state"), "{error}");
        field_of(&error).to_owned()
    };
    let header_end = 16 + u32::from_le_bytes(good[12..16].try_into().unwrap()) as usize;
    for len in (0..header_end + 8).chain([good.len() / 2, good.len() - 1]) {
        let field = refused(&good[..len], "truncated");
        let want = match len {
            0..8 => "magic",
            8..12 => "version",
            12..16 => "header length",
            _ if len < header_end => "header",
            _ => "file length",
        };
        // A header longer than what is left of the file is noticed at its length.
        assert!(field == want || (want == "header" && field == "header length"), "{len}: {field}");
    }
    assert_eq!(refused(&[&good[..], &[0]].concat(), "one byte too many"), "file length");
    // Every byte matters: a flipped bit anywhere is noticed.
    let step = (good.len() - header_end) / 200 + 1;
    for at in (0..header_end).chain((header_end..good.len()).step_by(step)) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        let field = refused(&bytes, "a flipped bit");
        if at >= header_end {
            assert_eq!(field, "checksum", "byte {at}");
        }
    }
    let mut bomb = good.clone();
    bomb[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(refused(&bomb, "a header of 4 GiB"), "header length");
    assert_eq!(refused(b"PK\x03\x04 this is something else", "another kind of file"), "magic");
    // Doctored contents with a fitting checksum.
    for (value, what) in [(f32::NAN, "NaN"), (f32::INFINITY, "infinity")] {
        let mut bytes = good.clone();
        bytes[header_end..header_end + 4].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&path, sealed(bytes)).unwrap();
        let error = t.load_state(&path).expect_err(what).to_string();
        assert!(error.contains("input_proj.weight"), "{error}");
        assert_same(&before, &snapshot(&mut t), what);
    }
    assert!(matches!(t.load_state(folder.path().join("absent")), Err(TrainerError::Io { .. })));
    std::fs::write(&path, &good).unwrap();
    t.load_state(&path).unwrap();
}

/// The same bytes with a checksum that fits.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let sum = crc32(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// A header that was changed on purpose, checksum included, is refused by a field or holds another state that is as
/// good; it never panics and never allocates more than the file holds.
pub fn a_doctored_header_is_refused_or_sound(target: &Target) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.state");
    trained(target).save_state(&path, b"user bytes").unwrap();
    let good = std::fs::read(&path).unwrap();
    let header_end = 16 + u32::from_le_bytes(good[12..16].try_into().unwrap()) as usize;
    let mut t = target.backbone();
    t.load_state(&path).unwrap();
    let before = snapshot(&mut t);
    let mut refused = 0;
    let doctored = (16..header_end).flat_map(|at| [0x00, 0x01, 0x7f, 0xff].map(|value| (at, value)));
    for (at, value) in doctored.filter(|(at, value)| good[*at] != *value) {
        let mut bytes = good.clone();
        bytes[at] = value;
        std::fs::write(&path, sealed(bytes)).unwrap();
        match t.load_state(&path) {
            Err(error) => {
                refused += 1;
                assert_same(&before, &snapshot(&mut t), &format!("byte {at} = {value}: {error}"));
            }
            Ok(_) => {
                t.training_state(b"").unwrap().validate().unwrap();
                std::fs::write(&path, &good).unwrap();
                t.load_state(&path).unwrap();
                assert_same(&before, &snapshot(&mut t), "the good file again");
            }
        }
    }
    // Of some 170 bytes most are sizes; rates, thresholds and the step count are free within their ranges.
    assert!(refused > 200, "{refused}");
    // Lengths that wrap around.
    for at in header_end - 8..header_end {
        let mut bytes = good.clone();
        bytes[at] = 0xff;
        std::fs::write(&path, sealed(bytes)).unwrap();
        assert_eq!(field_of(&t.load_state(&path).unwrap_err()), "file length");
    }
}

/// The number of norms ends the header but for the user section's length; the norms lie before the user section.
pub fn doctored_norms_are_refused(target: &Target) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.state");
    let mut t = trained(target);
    t.save_state(&path, b"user bytes").unwrap();
    let good = std::fs::read(&path).unwrap();
    let before = snapshot(&mut t);
    let mut refused = |bytes: Vec<u8>, what: &str| {
        std::fs::write(&path, sealed(bytes)).unwrap();
        let error = t.load_state(&path).expect_err(what);
        assert_same(&before, &snapshot(&mut t), what);
        error
    };
    let header_end = 16 + u32::from_le_bytes(good[12..16].try_into().unwrap()) as usize;
    let count = header_end - 16..header_end - 8;
    assert_eq!(good[count.clone()], 3u64.to_le_bytes());
    for (norms, field) in
        [(u64::MAX, "norms"), (1 << 61, "norms"), (129, "norms"), (128, "file length"), (2, "file length")]
    {
        let mut bytes = good.clone();
        bytes[count.clone()].copy_from_slice(&norms.to_le_bytes());
        assert_eq!(field_of(&refused(bytes, "a number of norms")), field, "{norms} norms");
    }
    let first = good.len() - 4 - b"user bytes".len() - 3 * 8;
    for norm in [f64::NAN, f64::INFINITY, -1.0] {
        let mut bytes = good.clone();
        bytes[first..first + 8].copy_from_slice(&norm.to_le_bytes());
        let error = refused(bytes, "a norm").to_string();
        assert!(error.contains("`norms`"), "{error}");
    }
    // Files of the version before have no norms.
    let mut bytes = good.clone();
    bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
    assert_eq!(field_of(&refused(bytes, "version 1")), "version");
    std::fs::write(&path, &good).unwrap();
    t.load_state(&path).unwrap();
}

/// CRC-32 (ISO 3309), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

pub fn a_foreign_state_is_refused_by_field(target: &Target) {
    let mut t = trained(target);
    let good = t.training_state(b"").unwrap();
    let before = snapshot(&mut t);
    let mut deeper = Target::backbone_config();
    deeper.n_layers = 3;
    let mut narrower = Target::backbone_config();
    narrower.rms_norm_eps = 1e-6;
    let session = good.session;
    for (want, model, session) in [
        ("n_layers", deeper, session),
        ("rms_norm_eps", narrower, session),
        ("batch", Target::backbone_config(), TrainSessionCfg { batch: 3, ..session }),
        ("seq_len", Target::backbone_config(), TrainSessionCfg { seq_len: 8, ..session }),
    ] {
        let weights = MambaWeights::init(&ModelConfig::backbone(model), 1).unwrap();
        let mut other = MambaTrainer::builder(weights, session).device(target.device).build().unwrap();
        let mut state = other.training_state(b"").unwrap();
        state.dtype = target.dtype;
        let error = t.load_training_state(&state).unwrap_err();
        let ok = matches!(error, TrainerError::StateMismatch { field, .. } if field == want);
        assert!(ok, "{want}: {error}");
        assert_same(&before, &snapshot(&mut t), want);
    }
    let dtype = match target.dtype {
        mamba_trainer::WeightDtype::F32 => mamba_trainer::WeightDtype::Bf16,
        _ => mamba_trainer::WeightDtype::F32,
    };
    let error = t.load_training_state(&TrainingState { dtype, ..good.clone() }).unwrap_err();
    assert!(matches!(error, TrainerError::StateMismatch { field: "dtype", .. }), "{error}");
    let mut broken = good.clone();
    broken.optimizer.v[3] = f32::NAN;
    assert!(t.load_training_state(&broken).unwrap_err().to_string().contains("`v`"));
    assert_same(&before, &snapshot(&mut t), "foreign states");
    t.load_training_state(&good).unwrap();
}

pub fn non_finite_runs_are_not_saved(target: &Target) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.state");
    let mut t = trained(target);
    t.save_state(&path, b"good").unwrap();
    let good = std::fs::read(&path).unwrap();
    let mut bad = Batch::new(4);
    bad.input[0] = f32::NAN;
    t.step(&bad.input, &bad.d_temporal).unwrap();
    let error = t.save_state(&path, b"bad").unwrap_err();
    assert!(error.to_string().contains("state."), "{error}");
    assert!(std::fs::read(&path).unwrap() == good, "the good file is still there");
    // The recurrence alone is spoilt: the step was skipped.
    t.reset_state().unwrap();
    t.save_state(&path, b"good again").unwrap();
}
