//! Folders in the original state-spaces naming: config.json with `d_model` and `ssm_cfg`, and model.safetensors or
//! pytorch_model.bin.

use super::detect::checkpoint_of;
use super::json::{Fields, MAX_CONFIG, read_text, write_json};
use super::mapping::{Entry, Style, entries};
use super::source::{Dtype, Source};
use super::write::write;
use super::{bad, in_file, io};
use crate::config::{LmHeadConfig, MambaConfig, ModelConfig};
use crate::error::Result;
use crate::params::{MambaWeights, ParamTable};
use serde_json::json;
use std::path::Path;

/// The epsilon of every norm; the format has no field for it.
const RMS_NORM_EPS: f64 = 1e-5;
/// Keys that change nothing about the numbers of a loaded model in f32.
const NEUTRAL: &[&str] = &["residual_in_fp32", "fused_add_norm"];
/// Those of `ssm_cfg`: how a fresh model is initialised, and which kernels run.
const NEUTRAL_SSM: &[&str] = &["dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path"];

/// Our fields' names and the file's.
const NAMES: &[(&str, &str)] = &[
    ("n_layers", "n_layer"),
    ("d_state", "ssm_cfg.d_state"),
    ("d_conv", "ssm_cfg.d_conv"),
    ("expand", "ssm_cfg.expand"),
    ("dt_rank", "ssm_cfg.dt_rank"),
];

fn config(path: &Path) -> Result<ModelConfig> {
    let text = read_text(path, MAX_CONFIG)?;
    let mut f = Fields::new(path, &text)?;
    let mut s = f.nested("ssm_cfg")?;
    s.only("layer", &json!("Mamba1"))?;
    let backbone = MambaConfig {
        d_model: f.need_size("d_model")?,
        n_layers: f.need_size("n_layer")?,
        d_state: s.size("d_state")?.unwrap_or(16),
        d_conv: s.size("d_conv")?.unwrap_or(4),
        expand: s.size("expand")?.unwrap_or(2),
        dt_rank: s.rank("dt_rank")?,
        conv_bias: s.flag("conv_bias", true)?,
        proj_bias: s.flag("bias", false)?,
        rms_norm_eps: RMS_NORM_EPS,
        input_dim: None,
    };
    s.finish(NEUTRAL_SSM)?;
    f.only("rms_norm", &json!(true))?;
    f.same_size("d_intermediate", 0, "the MLP's width of the blocks that are read")?;
    f.empty("attn_layer_idx", "attention layers")?;
    f.empty("attn_cfg", "attention layers")?;
    let lm = LmHeadConfig {
        vocab_size: f.need_size("vocab_size")?,
        pad_vocab_size_multiple: f.size("pad_vocab_size_multiple")?.unwrap_or(8),
        tied: f.flag("tie_embeddings", true)?,
    };
    f.finish(NEUTRAL)?;
    let config = ModelConfig::language_model(backbone.with_plain_rank(), lm);
    in_file(path, NAMES, config.validate())?;
    Ok(config)
}

/// Loads a folder in the original naming, or one weights file of it, beside its config.json. A tied head may be
/// stored besides the embedding and must then be equal to it.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) naming the field, [`ModelError::Io`](crate::ModelError::Io).
pub fn load_state_spaces(path: &Path) -> Result<MambaWeights> {
    let (config_file, weights) = checkpoint_of(path);
    let config = config(&config_file)?;
    let table = in_file(&config_file, NAMES, ParamTable::new(&config))?;
    let entries = entries(&table, Style::StateSpaces, path)?;
    let copy = match config.lm.as_ref().is_some_and(|lm| lm.tied) {
        true => Some(Entry::tied_head(&table)?),
        false => None,
    };
    Source::open(&weights)?.load(&config, &entries, copy.as_ref(), None)
}

/// Writes a folder in the original naming, with model.safetensors; a tied head is written twice, as the original
/// does.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) for a model without a place in this format or a weight beyond the
/// range of `dtype`, [`ModelError::NonFinite`](crate::ModelError::NonFinite),
/// [`ModelError::Io`](crate::ModelError::Io).
pub fn export_state_spaces(weights: &MambaWeights, folder: &Path, dtype: Dtype) -> Result<()> {
    let (c, lm) = (&weights.config().backbone, &weights.config().lm);
    let Some(lm) = lm else {
        return Err(bad(folder, "lm", "is absent; a bare backbone has no place in this format"));
    };
    if c.rms_norm_eps != RMS_NORM_EPS {
        let problem = format!("is {}; this format knows {RMS_NORM_EPS} only", c.rms_norm_eps);
        return Err(bad(folder, "rms_norm_eps", problem));
    }
    let mut entries = entries(weights.table(), Style::StateSpaces, folder)?;
    if lm.tied {
        entries.push(Entry::tied_head(weights.table())?);
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
    write(&folder.join("model.safetensors"), weights, entries, dtype, &[])?;
    write_json(&folder.join("config.json"), &config)
}
