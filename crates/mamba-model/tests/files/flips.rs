use crate::support::{memory_is_bounded, model};
use crate::torch::folder_with_archive;
use mamba_model::files::{Dtype, export_hf, load_pretrained, save_weights};
use proptest::prelude::{ProptestConfig, any, proptest};
use std::fs;
use std::path::Path;

/// Damages `file` at these places; loading `whole` is an error or gives finite weights.
fn damaged(file: &Path, whole: &Path, places: &[(u16, u8)], cut: Option<u16>) {
    let mut bytes = fs::read(file).unwrap();
    let length = bytes.len();
    for &(place, value) in places {
        bytes[usize::from(place) % length] = value;
    }
    if let Some(cut) = cut {
        bytes.truncate(usize::from(cut) % length);
    }
    fs::write(file, &bytes).unwrap();
    match load_pretrained(whole) {
        Ok(weights) => weights.check_finite().unwrap(),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    memory_is_bounded("damage");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    #[test]
    fn weights_files(places in proptest::collection::vec(any::<(u16, u8)>(), 1..6), cut: Option<u16>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        save_weights(&path, &model(true)).unwrap();
        damaged(&path, &path, &places, cut);
    }

    #[test]
    fn folders(places in proptest::collection::vec(any::<(u16, u8)>(), 1..4), config: bool) {
        let folder = tempfile::tempdir().unwrap();
        export_hf(&model(true), folder.path(), Dtype::Bf16).unwrap();
        let file = folder.path().join(if config { "config.json" } else { "model.safetensors" });
        damaged(&file, folder.path(), &places, None);
    }

    #[test]
    fn archives(places in proptest::collection::vec(any::<(u16, u8)>(), 1..4), cut: Option<u16>) {
        let (folder, file) = folder_with_archive();
        damaged(&file, folder.path(), &places, cut);
    }
}
