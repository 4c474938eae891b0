//! Hugging Face folders of `MambaForCausalLM` and `MambaModel`: config.json and model.safetensors.

use super::detect::checkpoint_of;
use super::json::{Fields, MAX_CONFIG, read_text, write_json};
use super::mapping::{Entry, Style, entries};
use super::source::{Dtype, Source};
use super::write::write;
use super::{bad, in_file, io};
use crate::config::{LmHeadConfig, MambaConfig, ModelConfig};
use crate::error::Result;
use crate::params::{MambaWeights, ParamTable};
use serde_json::{Value, json};
use std::path::Path;

/// Keys that change nothing about the numbers of a loaded model in f32: how it was initialised, how it is run or
/// generated from, how it is stored. `ssm_cfg`, `fused_add_norm` and the like are leftovers of a conversion that the
/// library does not read either.
const NEUTRAL: &[&str] = &[
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "fused_add_norm",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pad_vocab_size_multiple",
    "problem_type",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "return_dict",
    "ssm_cfg",
    "time_step_floor",
    "time_step_init_scheme",
    "time_step_max",
    "time_step_min",
    "time_step_scale",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_associative_scan",
    "use_cache",
    "use_mambapy",
];

/// Our fields' names and the file's.
const NAMES: &[(&str, &str)] = &[
    ("d_model", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("d_state", "state_size"),
    ("d_conv", "conv_kernel"),
    ("dt_rank", "time_step_rank"),
    ("rms_norm_eps", "layer_norm_epsilon"),
];

fn config(path: &Path) -> Result<ModelConfig> {
    let text = read_text(path, MAX_CONFIG)?;
    let mut f = Fields::new(path, &text)?;
    f.only("model_type", &json!("mamba"))?;
    f.only("hidden_act", &json!("silu"))?;
    f.only("rms_norm", &json!(true))?;
    let backbone = MambaConfig {
        d_model: f.need_size("hidden_size")?,
        n_layers: f.need_size("num_hidden_layers")?,
        d_state: f.size("state_size")?.unwrap_or(16),
        d_conv: f.size("conv_kernel")?.unwrap_or(4),
        expand: f.size("expand")?.unwrap_or(2),
        dt_rank: f.rank("time_step_rank")?,
        conv_bias: f.flag("use_conv_bias", true)?,
        proj_bias: f.flag("use_bias", false)?,
        rms_norm_eps: f.number("layer_norm_epsilon", 1e-5)?,
        input_dim: None,
    };
    let vocab_size = f.need_size("vocab_size")?;
    let tied = f.flag("tie_word_embeddings", true)?;
    let lm = LmHeadConfig { vocab_size, pad_vocab_size_multiple: 1, tied };
    let config = ModelConfig::language_model(backbone.with_plain_rank(), lm);
    in_file(path, NAMES, config.validate())?;
    let (backbone, inner) = (&config.backbone, config.backbone.d_inner());
    f.same_size("intermediate_size", inner, "expand · hidden_size")?;
    f.same_size("d_inner", inner, "expand · hidden_size")?;
    f.same_size("d_model", backbone.d_model, "hidden_size")?;
    f.same_size("n_layer", backbone.n_layers, "num_hidden_layers")?;
    f.finish(NEUTRAL)?;
    Ok(config)
}

/// Loads a folder written by `save_pretrained`, or one weights file of it, beside its config.json. A `MambaModel`
/// without a head becomes a language model with a tied head, as the library itself does it.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) naming the field, [`ModelError::Io`](crate::ModelError::Io).
pub fn load_hf(path: &Path) -> Result<MambaWeights> {
    let (config_file, weights) = checkpoint_of(path);
    let config = config(&config_file)?;
    let source = Source::open(&weights)?;
    let bare = Style::HuggingFaceBare;
    let full = source.has(&Style::HuggingFace.embedding()) || !source.has(&bare.embedding());
    let table = in_file(&config_file, NAMES, ParamTable::new(&config))?;
    let entries = entries(&table, if full { Style::HuggingFace } else { bare }, path)?;
    let copy = match config.lm.as_ref().is_some_and(|lm| lm.tied) {
        true => Some(Entry::tied_head(&table)?),
        false => None,
    };
    source.load(&config, &entries, copy.as_ref(), None)
}

/// Writes a folder that `MambaForCausalLM.from_pretrained` reads. The format knows no padding of the vocabulary:
/// padded rows become tokens of their own, so that every logit stays.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) for a model without a place in this format or a weight beyond the
/// range of `dtype`, [`ModelError::NonFinite`](crate::ModelError::NonFinite),
/// [`ModelError::Io`](crate::ModelError::Io).
pub fn export_hf(weights: &MambaWeights, folder: &Path, dtype: Dtype) -> Result<()> {
    let (c, lm) = (&weights.config().backbone, &weights.config().lm);
    let Some(lm) = lm else {
        return Err(bad(folder, "lm", "is absent; a bare backbone has no place in this format"));
    };
    let name = match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
    };
    // The token ids are null because the library's defaults would end a text at token 0.
    let config = json!({
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "hidden_size": c.d_model,
        "num_hidden_layers": c.n_layers,
        "state_size": c.d_state,
        "conv_kernel": c.d_conv,
        "expand": c.expand,
        "intermediate_size": c.d_inner(),
        "time_step_rank": c.dt_rank(),
        "use_conv_bias": c.conv_bias,
        "use_bias": c.proj_bias,
        "layer_norm_epsilon": c.rms_norm_eps,
        "vocab_size": lm.rows(),
        "tie_word_embeddings": lm.tied,
        "hidden_act": "silu",
        "residual_in_fp32": true,
        "dtype": name,
        "bos_token_id": Value::Null,
        "eos_token_id": Value::Null,
        "pad_token_id": Value::Null,
    });
    let entries = entries(weights.table(), Style::HuggingFace, folder)?;
    std::fs::create_dir_all(folder).map_err(io(folder, "create the folder"))?;
    write(&folder.join("model.safetensors"), weights, entries, dtype, &[("format", "pt")])?;
    write_json(&folder.join("config.json"), &config)
}
