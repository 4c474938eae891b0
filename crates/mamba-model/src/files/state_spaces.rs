//! Folders in the original state-spaces naming: config.json with `d_model` and `ssm_cfg`, and model.safetensors or
//! pytorch_model.bin.

use super::hf::{Fields, checkpoint_tensors, write_json};
use super::mapping::{Style, entries};
use super::native::write;
use super::source::{Dtype, Source};
use super::{bad, io};
use crate::config::{LmHeadConfig, MambaConfig, ModelConfig};
use crate::error::Result;
use crate::params::MambaWeights;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// Keys that change nothing about the numbers of a loaded model.
const NEUTRAL: &[&str] = &["residual_in_fp32", "fused_add_norm"];
/// Those of `ssm_cfg`: how a fresh model is initialised, and which kernels run.
const NEUTRAL_SSM: &[&str] = &["dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path"];

fn config(path: &Path) -> Result<ModelConfig> {
    let mut f = Fields::read(path)?;
    let ssm = match f.take("ssm_cfg") {
        None => serde_json::Map::new(),
        Some(Value::Object(map)) => map,
        Some(v) => return Err(bad(path, "ssm_cfg", format!("is {v}, an object is wanted"))),
    };
    let mut s = Fields::of(path, ssm);
    if let Some(layer) = s.take("layer").filter(|l| l != "Mamba1") {
        return Err(bad(path, "ssm_cfg.layer", format!("is {layer}, \"Mamba1\" is read")));
    }
    let backbone = MambaConfig {
        d_model: f.need_size("d_model")?,
        n_layers: f.need_size("n_layer")?,
        d_state: s.size("d_state")?.unwrap_or(16),
        d_conv: s.size("d_conv")?.unwrap_or(4),
        expand: s.size("expand")?.unwrap_or(2),
        dt_rank: s.rank("dt_rank")?,
        conv_bias: s.flag("conv_bias", true)?,
        proj_bias: s.flag("bias", false)?,
        rms_norm_eps: 1e-5,
        input_dim: None,
    };
    s.finish(NEUTRAL_SSM)?;
    if !f.flag("rms_norm", true)? {
        return Err(bad(path, "rms_norm", "is false; only RMSNorm is read"));
    }
    if f.size("d_intermediate")?.is_some_and(|n| n != 0) {
        return Err(bad(path, "d_intermediate", "is above 0; blocks with an MLP are not read"));
    }
    for key in ["attn_layer_idx", "attn_cfg"] {
        let empty = |v: &Value| {
            v.as_array().is_some_and(Vec::is_empty) || v.as_object().is_some_and(serde_json::Map::is_empty)
        };
        if let Some(v) = f.take(key).filter(|v| !empty(v)) {
            return Err(bad(path, key, format!("is {v}; attention layers are not read")));
        }
    }
    let lm = LmHeadConfig {
        vocab_size: f.need_size("vocab_size")?,
        pad_vocab_size_multiple: f.size("pad_vocab_size_multiple")?.unwrap_or(8),
        tied: f.flag("tie_embeddings", true)?,
    };
    f.finish(NEUTRAL)?;
    let config = ModelConfig::language_model(backbone.with_plain_rank(), lm);
    config.validate()?;
    Ok(config)
}

/// Loads a folder in the original naming.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) naming the field, [`ModelError::Config`](crate::ModelError::Config),
/// [`ModelError::Io`](crate::ModelError::Io).
pub fn load_state_spaces(folder: &Path) -> Result<MambaWeights> {
    let config = config(&folder.join("config.json"))?;
    Source::open(folder)?.load(&config, None, &|table| entries(table, Style::StateSpaces, folder))
}

/// Writes a folder in the original naming, with model.safetensors; a tied head is written twice, as the original does.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) for a model without a place in this format,
/// [`ModelError::NonFinite`](crate::ModelError::NonFinite), [`ModelError::Io`](crate::ModelError::Io).
pub fn export_state_spaces(weights: &MambaWeights, folder: &Path, dtype: Dtype) -> Result<()> {
    let (c, lm) = (&weights.config().backbone, &weights.config().lm);
    let Some(lm) = lm else {
        return Err(bad(folder, "lm", "is absent; a bare backbone has no place in this format"));
    };
    if c.rms_norm_eps != 1e-5 {
        return Err(bad(
            folder,
            "rms_norm_eps",
            format!("is {}; this format knows 1e-5 only", c.rms_norm_eps),
        ));
    }
    let mut tensors = checkpoint_tensors(weights, Style::StateSpaces, folder, dtype)?;
    if lm.tied {
        let embedding = tensors.iter().find(|(name, ..)| name == "backbone.embedding.weight").cloned();
        tensors.extend(embedding.map(|(_, shape, bytes)| ("lm_head.weight".to_owned(), shape, bytes)));
    }
    let config = json!({
        "d_model": c.d_model,
        "d_intermediate": 0,
        "n_layer": c.n_layers,
        "vocab_size": lm.vocab_size,
        "ssm_cfg": {
            "d_state": c.d_state,
            "d_conv": c.d_conv,
            "expand": c.expand,
            "dt_rank": c.dt_rank(),
            "conv_bias": c.conv_bias,
            "bias": c.proj_bias,
        },
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": true,
        "residual_in_fp32": true,
        "fused_add_norm": true,
        "pad_vocab_size_multiple": lm.pad_vocab_size_multiple,
        "tie_embeddings": lm.tied,
    });
    std::fs::create_dir_all(folder).map_err(io(folder, "create the folder"))?;
    write(&folder.join("model.safetensors"), tensors, dtype, HashMap::new())?;
    write_json(&folder.join("config.json"), &config)
}
