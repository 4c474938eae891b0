//! Language-model checkpoints of transformers and state-spaces: loading, logits, loss, gradients, decoding, round trips.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::cpu::{CpuDecoder, CpuModel, CpuOptions};
use mamba_model::files::{
    Dtype, export_hf, export_state_spaces, load_pretrained, load_weights, save_weights,
};
use mamba_model::oracle::{Oracle, cross_entropy};
use mamba_model::{ModelInput, RecurrentState};
use mamba_tests::golden::relative_error;
use mamba_tests::golden_lm::{FOLDERS, batch, check, folder};
use mamba_tests::tolerance::{Checks, Route};
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn oracle_follows_the_libraries() {
    let mut checks = Checks::new(Route::Oracle);
    for name in FOLDERS {
        let (b, weights) = (batch(name), load_pretrained(&folder(name)).unwrap());
        let params = weights.arena().iter().map(|&w| f64::from(w)).collect();
        let oracle = Oracle::new(weights.config(), params).unwrap();
        let trace = oracle.forward(b.batch, ModelInput::Tokens(&b.ids), None, (&[], &[]));
        let counted = b.targets.iter().filter(|&&t| t >= 0).count() as f64;
        let (sums, grads) = oracle.loss_backward(&trace, &b.targets, None, 1.0 / counted);
        let loss = sums.nll / sums.weight;
        check(&mut checks, &b, &weights, (&oracle.logits(&trace), loss, &grads.params));
    }
    checks.finish();
}

#[test]
fn engine_follows_the_libraries() {
    let mut checks = Checks::new(Route::Cpu);
    for name in FOLDERS {
        let (b, weights) = (batch(name), load_pretrained(&folder(name)).unwrap());
        let mut model =
            CpuModel::new(weights.config(), b.batch, b.ids.len() / b.batch, &CpuOptions::default()).unwrap();
        model.refresh(weights.arena()).unwrap();
        let mut state = RecurrentState::zeros(&weights.config().backbone, b.batch);
        model.forward(weights.arena(), ModelInput::Tokens(&b.ids), None, &mut state).unwrap();
        let mut logits = vec![0.0; b.case.get("logits").len()];
        model.logits(weights.arena(), &mut logits).unwrap();
        let counted = b.targets.iter().filter(|&&t| t >= 0).count() as f32;
        let mut grads = vec![0.0f32; weights.arena().len()];
        let sums = model.loss_backward(weights.arena(), &b.targets, None, 1.0 / counted, &mut grads).unwrap();
        check(&mut checks, &b, &weights, (&logits, sums.mean(), &grads));
    }
    checks.finish();
}

/// state-spaces' loss includes the padding columns; over the vocabulary alone it is another number.
#[test]
fn padding_columns_count_in_the_loss() {
    for name in ["ss_tied", "ss_cfg"] {
        let (b, weights) = (batch(name), load_pretrained(&folder(name)).unwrap());
        let lm = weights.config().lm.as_ref().unwrap();
        assert!(lm.rows() > lm.vocab_size, "{name}");
        let logits = b.case.get("logits");
        let cut: Vec<f64> = logits.chunks(lm.rows()).flat_map(|row| &row[..lm.vocab_size]).copied().collect();
        for (logits, want) in [(logits, "loss"), (&cut, "loss_first_vocab_columns")] {
            let sums = cross_entropy(logits, &b.targets, None);
            let error = relative_error(&[sums.nll / sums.weight], b.case.get(want));
            assert!(error < 1e-14, "{name} {want}: {error:e}");
        }
    }
}

#[test]
fn greedy_decoding_continues_as_the_libraries_do() {
    for name in FOLDERS {
        let (b, weights) = (batch(name), load_pretrained(&folder(name)).unwrap());
        let vocab = weights.config().lm.as_ref().unwrap().vocab_size;
        let prompt: Vec<u32> = b.case.get("prompt_ids").iter().map(|&id| id as u32).collect();
        let mut decoder = CpuDecoder::new(&weights, 1, &CpuOptions::default()).unwrap();
        let best =
            |logits: &[f32]| (0..vocab).max_by(|&i, &j| logits[i].total_cmp(&logits[j])).unwrap() as u32;
        let mut next = best(decoder.prefill(&prompt).unwrap());
        for (i, &want) in b.case.get("generated_ids").iter().enumerate() {
            assert_eq!(next, want as u32, "{name} token {i}");
            next = best(decoder.step(&[next]).unwrap());
        }
    }
}

#[test]
fn both_forms_of_a_state_spaces_checkpoint_agree() {
    for name in ["ss_tied", "ss_cfg"] {
        let copy = tempfile::tempdir().unwrap();
        for file in ["config.json", "pytorch_model.bin"] {
            std::fs::copy(folder(name).join(file), copy.path().join(file)).unwrap();
        }
        assert_eq!(load_pretrained(copy.path()).unwrap(), load_pretrained(&folder(name)).unwrap(), "{name}");
    }
}

/// Bytes of every tensor of a safetensors file.
fn tensors(file: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let parsed = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    parsed.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
}

#[test]
fn an_export_is_byte_equal_in_every_tensor() {
    let out = tempfile::tempdir().unwrap();
    for name in FOLDERS {
        let weights = load_pretrained(&folder(name)).unwrap();
        let target = out.path().join(name);
        match name.starts_with("hf") {
            true => export_hf(&weights, &target, Dtype::F32).unwrap(),
            false => export_state_spaces(&weights, &target, Dtype::F32).unwrap(),
        }
        let (got, want) =
            (tensors(&target.join("model.safetensors")), tensors(&folder(name).join("model.safetensors")));
        assert_eq!(got, want, "{name}");
        assert_eq!(load_pretrained(&target).unwrap(), weights, "{name}");
        let native = out.path().join(format!("{name}.safetensors"));
        save_weights(&native, &weights).unwrap();
        assert_eq!(load_weights(&native).unwrap(), weights, "{name}");
    }
}

#[test]
fn half_precision_exports_round_once() {
    let weights = load_pretrained(&folder("hf_tied")).unwrap();
    let out = tempfile::tempdir().unwrap();
    for (dtype, bound) in [(Dtype::Bf16, 2.0f32.powi(-8)), (Dtype::F16, 2.0f32.powi(-11))] {
        export_hf(&weights, out.path(), dtype).unwrap();
        let back = load_pretrained(out.path()).unwrap();
        for (a, b) in back.arena().iter().zip(weights.arena()) {
            assert!((a - b).abs() <= bound * b.abs() + 3e-8, "{a} {b}");
        }
        export_hf(&back, out.path(), dtype).unwrap();
        assert_eq!(load_pretrained(out.path()).unwrap(), back);
    }
}
