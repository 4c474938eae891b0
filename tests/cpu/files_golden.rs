//! Checkpoint files that the libraries wrote: layouts, half-precision copies, damage to a real torch archive.
#![allow(clippy::unwrap_used, clippy::panic)]

use half::{bf16, f16};
use mamba_model::files::{Dtype, export_hf, export_state_spaces, load_pretrained};
use safetensors::tensor::TensorView;
use safetensors::{SafeTensors, serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const FOLDERS: [&str; 4] = ["hf_tied", "hf_untied", "ss_tied", "ss_cfg"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/lm").join(name)
}

/// Shape and bytes by name.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

fn tensors(file: &Path) -> Tensors {
    let bytes = fs::read(file).unwrap();
    let parsed = SafeTensors::deserialize(&bytes).unwrap();
    parsed.iter().map(|(name, v)| (name.to_owned(), (v.shape().to_vec(), v.data().to_vec()))).collect()
}

fn export(name: &str, folder: &Path, dtype: Dtype) {
    let weights = load_pretrained(folder).unwrap();
    match name.starts_with("hf") {
        true => export_hf(&weights, folder, dtype).unwrap(),
        false => export_state_spaces(&weights, folder, dtype).unwrap(),
    }
}

fn copy(name: &str, files: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        fs::copy(golden(name).join(file), folder.path().join(file)).unwrap();
    }
    folder
}

#[test]
fn an_export_has_the_layout_of_the_libraries_gradients() {
    for name in FOLDERS {
        let folder = copy(name, &["config.json", "model.safetensors"]);
        export(name, folder.path(), Dtype::F32);
        let exported = tensors(&folder.path().join("model.safetensors"));
        let gradients = tensors(&golden(name).join("golden.safetensors"));
        let mut compared = 0;
        for (tensor, (shape, _)) in &gradients {
            if let Some(tensor) = tensor.strip_prefix("grad/") {
                assert_eq!(&exported[tensor].0, shape, "{name} {tensor}");
                compared += 1;
            }
        }
        // A tied head of the original naming is a second copy, and has no gradient of its own.
        let tied_copy = usize::from(name.starts_with("ss"));
        assert_eq!(compared + tied_copy, exported.len(), "{name}");
    }
}

#[test]
fn half_precision_checkpoints_are_byte_equal_after_a_round_trip() {
    for name in FOLDERS {
        for (ours, theirs) in [(Dtype::Bf16, safetensors::Dtype::BF16), (Dtype::F16, safetensors::Dtype::F16)]
        {
            let folder = copy(name, &["config.json", "model.safetensors"]);
            let file = folder.path().join("model.safetensors");
            let mut all = tensors(&file);
            for (_, bytes) in all.values_mut() {
                let round = |b: &[u8; 4]| match ours {
                    Dtype::F16 => f16::from_f32(f32::from_le_bytes(*b)).to_le_bytes(),
                    _ => bf16::from_f32(f32::from_le_bytes(*b)).to_le_bytes(),
                };
                *bytes = bytes.as_chunks().0.iter().flat_map(round).collect();
            }
            let views = all.iter().map(|(n, (s, b))| (n, TensorView::new(theirs, s.clone(), b).unwrap()));
            fs::write(&file, serialize(views, None).unwrap()).unwrap();
            export(name, folder.path(), ours);
            assert_eq!(tensors(&file), all, "{name} {ours:?}");
        }
    }
}

/// Writes this archive beside the config and loads it; an error must name something, weights must be finite.
fn try_archive(folder: &Path, bytes: &[u8]) -> Option<String> {
    fs::write(folder.join("pytorch_model.bin"), bytes).unwrap();
    match load_pretrained(folder) {
        Ok(weights) => {
            weights.check_finite().unwrap();
            None
        }
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn a_torch_archive_that_is_cut_off_is_refused() {
    let folder = copy("ss_cfg", &["config.json"]);
    let good = fs::read(golden("ss_cfg").join("pytorch_model.bin")).unwrap();
    assert_eq!(try_archive(folder.path(), &good), None);
    let is_boundary = |&at: &usize| good[at..].starts_with(b"PK") || at % 503 == 0 || at + 200 > good.len();
    for cut in (0..good.len()).filter(is_boundary) {
        let error =
            try_archive(folder.path(), &good[..cut]).unwrap_or_else(|| panic!("cut at {cut} was accepted"));
        assert!(error.contains("`archive`"), "cut at {cut}: {error}");
    }
}

/// Every byte of the pickle and of the directory, one after the other.
#[test]
fn no_byte_of_a_torch_archive_is_trusted() {
    let folder = copy("ss_cfg", &["config.json"]);
    let good = fs::read(golden("ss_cfg").join("pytorch_model.bin")).unwrap();
    let directory = good.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    let first_storage = good.windows(4).skip(1).position(|w| w == b"PK\x03\x04").unwrap() + 1;
    let mut refused = 0;
    for at in (0..first_storage).chain(directory..good.len()) {
        let mut bytes = good.clone();
        bytes[at] ^= if at % 2 == 0 { 0xff } else { 1 };
        refused += usize::from(try_archive(folder.path(), &bytes).is_some());
    }
    // What may change without harm: times, checksums, versions, the dictionary's attributes, numbers in the memo.
    let tried = first_storage + good.len() - directory;
    println!("{refused} of {tried} changed bytes were refused");
    assert!(refused > tried / 3, "{refused} of {tried}");
}
