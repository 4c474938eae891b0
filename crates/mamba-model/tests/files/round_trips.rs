use crate::support::{lm, model, tensors};
use mamba_model::files::{
    Dtype, Kind, detect, export_hf, export_state_spaces, load_pretrained, load_weights, read_config,
    save_weights, write_config,
};
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelError};
use std::fs;
use std::path::Path;

/// Every option away from its default.
fn options(tied: bool) -> ModelConfig {
    let backbone = MambaConfig {
        d_state: 3,
        d_conv: 5,
        expand: 3,
        dt_rank: Some(4),
        conv_bias: false,
        proj_bias: true,
        ..MambaConfig::new(5, 3)
    };
    ModelConfig::language_model(backbone, LmHeadConfig { vocab_size: 13, pad_vocab_size_multiple: 8, tied })
}

/// The same weights with another bit pattern in every value, so that a swap of tensors shows.
fn weights(config: &ModelConfig) -> MambaWeights {
    let mut w = MambaWeights::init(config, 3).unwrap();
    let names: Vec<String> = w.table().iter().map(|p| p.name.clone()).collect();
    for (i, name) in names.iter().enumerate() {
        let values: Vec<f32> =
            (0..w.get(name).unwrap().len()).map(|j| (i as f32 + 1.0) + j as f32 / 4096.0).collect();
        w.set(name, &values).unwrap();
    }
    w
}

#[test]
fn every_option_survives_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for tied in [true, false] {
        let w = weights(&options(tied));
        save_weights(&at("native"), &w).unwrap();
        assert_eq!(detect(&at("native")).unwrap(), Kind::Native);
        assert_eq!(load_pretrained(&at("native")).unwrap(), w);
        export_state_spaces(&w, &at("ss"), Dtype::F32).unwrap();
        assert_eq!(detect(&at("ss")).unwrap(), Kind::StateSpaces);
        assert_eq!(load_pretrained(&at("ss")).unwrap(), w);
        assert_eq!(load_pretrained(&at("ss").join("model.safetensors")).unwrap(), w);
        export_hf(&w, &at("hf"), Dtype::F32).unwrap();
        assert_eq!(detect(&at("hf")).unwrap(), Kind::HuggingFace);
        let back = load_pretrained(&at("hf")).unwrap();
        assert_eq!(load_pretrained(&at("hf").join("model.safetensors")).unwrap(), back);
        assert_eq!(back.arena(), w.arena());
        assert_eq!(back.config().backbone, w.config().backbone);
        let lm = LmHeadConfig { vocab_size: 16, pad_vocab_size_multiple: 1, tied };
        assert_eq!(back.config().lm, Some(lm), "padded rows become tokens");
    }
    let backbone = weights(&ModelConfig::backbone(
        MambaConfig { rms_norm_eps: 1e-6, ..MambaConfig::new(4, 1) }.with_input_dim(3),
    ));
    save_weights(&at("backbone"), &backbone).unwrap();
    assert_eq!(load_weights(&at("backbone")).unwrap(), backbone);
    write_config(&at("config"), backbone.config()).unwrap();
    assert_eq!(read_config(&at("config")).unwrap(), *backbone.config());
}

#[test]
fn the_same_weights_make_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str| {
        let path = folder.path().join(name);
        save_weights(&path, &model(true)).unwrap();
        export_hf(&model(true), &folder.path().join("hf"), Dtype::Bf16).unwrap();
        [fs::read(path).unwrap(), fs::read(folder.path().join("hf/model.safetensors")).unwrap()]
    };
    assert_eq!(written("a"), written("b"));
    assert_eq!(written("a")[0].len() % 4, 0);
}

#[test]
fn half_types_are_read_back_as_written() {
    let folder = tempfile::tempdir().unwrap();
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let (once, twice) = (folder.path().join("1"), folder.path().join("2"));
        export_hf(&model(false), &once, dtype).unwrap();
        let back = load_pretrained(&once).unwrap();
        assert_ne!(back, model(false), "rounded");
        export_hf(&back, &twice, dtype).unwrap();
        let file = |f: &Path| tensors(&f.join("model.safetensors"));
        assert_eq!(file(&once), file(&twice));
        let sizes: usize = back.table().iter().map(|p| p.span.len).sum();
        assert_eq!(file(&once).iter().map(|t| t.3.len()).sum::<usize>(), 2 * sizes);
    }
}

#[test]
fn what_cannot_be_written_is_named_and_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    save_weights(&path, &model(true)).unwrap();
    let old = fs::read(&path).unwrap();
    let with = |value: f32| {
        let mut w = model(true);
        let mut d = w.get("layers.1.D").unwrap().to_vec();
        d[2] = value;
        w.set("layers.1.D", &d).unwrap();
        w
    };
    for value in [f32::NAN, f32::INFINITY] {
        let error = save_weights(&path, &with(value)).unwrap_err();
        assert!(
            matches!(error, ModelError::NonFinite { ref name, index: 2, .. } if name == "layers.1.D"),
            "{error}"
        );
        assert!(export_hf(&with(value), folder.path(), Dtype::F32).is_err());
    }
    assert_eq!(fs::read(&path).unwrap(), old);
    // The largest finite values, and the first that round to infinity.
    for (dtype, fits, beyond) in [(Dtype::F16, 65_519.0, 65_520.0), (Dtype::Bf16, 3.389e38, f32::MAX)] {
        export_hf(&with(fits), &folder.path().join("hf"), dtype).unwrap();
        load_pretrained(&folder.path().join("hf")).unwrap();
        let error = export_hf(&with(-beyond), &folder.path().join("hf"), dtype).unwrap_err().to_string();
        assert!(error.contains("`backbone.layers.1.mixer.D` holds -"), "{error}");
        load_pretrained(&folder.path().join("hf")).unwrap();
    }
    let backbone = weights(&ModelConfig::backbone(MambaConfig::new(4, 1)));
    let eps = MambaConfig { rms_norm_eps: 1e-6, ..MambaConfig::new(4, 1) };
    let eps = weights(&ModelConfig::language_model(eps, LmHeadConfig::new(5)));
    let out = folder.path().join("out");
    for (error, field) in [
        (export_hf(&backbone, &out, Dtype::F32), "lm"),
        (export_state_spaces(&backbone, &out, Dtype::F32), "lm"),
        (export_state_spaces(&eps, &out, Dtype::F32), "rms_norm_eps"),
    ] {
        assert!(matches!(error, Err(ModelError::File { field: ref f, .. }) if f == field), "{error:?}");
    }
    assert!(!out.exists());
    let occupied = export_hf(&lm(11, 1, true), &path, Dtype::F32).unwrap_err().to_string();
    assert!(occupied.contains("cannot create the folder"), "{occupied}");
}

#[test]
fn a_native_file_may_bear_any_name() {
    let folder = tempfile::tempdir().unwrap();
    export_hf(&model(true), folder.path(), Dtype::F32).unwrap();
    let path = folder.path().join("model.safetensors");
    assert_eq!(detect(&path).unwrap(), Kind::HuggingFace);
    save_weights(&path, &model(false)).unwrap();
    assert_eq!(detect(&path).unwrap(), Kind::Native);
    assert_eq!(load_pretrained(&path).unwrap(), model(false));
}
