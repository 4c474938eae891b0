//! Hugging Face folders of `MambaForCausalLM`: config.json and model.safetensors.

use super::mapping::{Style, entries};
use super::native::{Encoded, write};
use super::safe::read_text;
use super::source::{Dtype, Source};
use super::{atomic_write, bad, io};
use crate::config::{LmHeadConfig, MambaConfig, ModelConfig};
use crate::error::Result;
use crate::params::MambaWeights;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// Keys that change nothing about the numbers of a loaded model.
const NEUTRAL: &[&str] = &[
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "chunk_size_feed_forward",
    "d_inner",
    "d_model",
    "dtype",
    "eos_token_id",
    "fused_add_norm",
    "id2label",
    "initializer_range",
    "intermediate_size",
    "is_encoder_decoder",
    "label2id",
    "model_type",
    "n_layer",
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
    "torch_dtype",
    "transformers_version",
    "use_associative_scan",
    "use_cache",
    "use_mambapy",
];

/// Reads typed fields off a JSON object and remembers which were asked for.
pub(super) struct Fields<'a> {
    path: &'a Path,
    map: Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub fn read(path: &'a Path) -> Result<Self> {
        let value: Value = serde_json::from_str(&read_text(path)?)
            .map_err(|e| bad(path, "config", format!("is no JSON: {e}")))?;
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            _ => Err(bad(path, "config", "is no JSON object")),
        }
    }

    pub fn of(path: &'a Path, map: Map<String, Value>) -> Self {
        Self { path, map }
    }

    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|v| !v.is_null())
    }

    pub fn size(&mut self, key: &str) -> Result<Option<usize>> {
        let value = self.take(key);
        value
            .map(|v| {
                v.as_u64()
                    .map(|n| n as usize)
                    .ok_or_else(|| bad(self.path, key, format!("is {v}, a count is wanted")))
            })
            .transpose()
    }

    pub fn need_size(&mut self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| bad(self.path, key, "is absent"))
    }

    pub fn flag(&mut self, key: &str, default: bool) -> Result<bool> {
        match self.take(key) {
            None => Ok(default),
            Some(v) => {
                v.as_bool().ok_or_else(|| bad(self.path, key, format!("is {v}, true or false is wanted")))
            }
        }
    }

    /// A rank: a count, or "auto".
    pub fn rank(&mut self, key: &str) -> Result<Option<usize>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(s)) if s == "auto" => Ok(None),
            Some(v) => match v.as_u64() {
                Some(n) => Ok(Some(n as usize)),
                None => Err(bad(self.path, key, format!("is {v}, a count or \"auto\" is wanted"))),
            },
        }
    }

    /// Refuses what is left, but for the neutral keys.
    pub fn finish(self, neutral: &[&str]) -> Result<()> {
        match self.map.keys().find(|k| !neutral.contains(&k.as_str())) {
            Some(key) => {
                Err(bad(self.path, key, format!("({}) is not known; it may change the model", self.map[key])))
            }
            None => Ok(()),
        }
    }
}

fn config(path: &Path) -> Result<ModelConfig> {
    let mut f = Fields::read(path)?;
    let kind = f.map.get("model_type").cloned().unwrap_or_default();
    if kind != "mamba" {
        return Err(bad(path, "model_type", format!("is {kind}, \"mamba\" is read")));
    }
    if let Some(act) = f.take("hidden_act").filter(|a| a != "silu") {
        return Err(bad(path, "hidden_act", format!("is {act}, \"silu\" is read")));
    }
    let backbone = MambaConfig {
        d_model: f.need_size("hidden_size")?,
        n_layers: f.need_size("num_hidden_layers")?,
        d_state: f.size("state_size")?.unwrap_or(16),
        d_conv: f.size("conv_kernel")?.unwrap_or(4),
        expand: f.size("expand")?.unwrap_or(2),
        dt_rank: f.rank("time_step_rank")?,
        conv_bias: f.flag("use_conv_bias", true)?,
        proj_bias: f.flag("use_bias", false)?,
        rms_norm_eps: match f.take("layer_norm_epsilon") {
            None => 1e-5,
            Some(v) => v
                .as_f64()
                .ok_or_else(|| bad(path, "layer_norm_epsilon", format!("is {v}, a number is wanted")))?,
        },
        input_dim: None,
    };
    let vocab_size = f.need_size("vocab_size")?;
    let tied = f.flag("tie_word_embeddings", true)?;
    if f.map.get("rms_norm").is_some_and(|v| *v == Value::Bool(false)) {
        return Err(bad(path, "rms_norm", "is false; only RMSNorm is read"));
    }
    let _ = f.take("rms_norm");
    let config = ModelConfig::language_model(
        backbone.with_plain_rank(),
        LmHeadConfig { vocab_size, pad_vocab_size_multiple: 1, tied },
    );
    config.validate()?;
    if let Some(inner) = f.map.get("intermediate_size").and_then(Value::as_u64)
        && inner as usize != config.backbone.d_inner()
    {
        let problem = format!("is {inner}, expand · hidden_size is {}", config.backbone.d_inner());
        return Err(bad(path, "intermediate_size", problem));
    }
    f.finish(NEUTRAL)?;
    Ok(config)
}

/// Loads a folder written by `save_pretrained`.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) naming the field, [`ModelError::Config`](crate::ModelError::Config),
/// [`ModelError::Io`](crate::ModelError::Io).
pub fn load_hf(folder: &Path) -> Result<MambaWeights> {
    let config = config(&folder.join("config.json"))?;
    Source::open(folder)?.load(&config, None, &|table| entries(table, Style::HuggingFace, folder))
}

/// Writes a folder that `MambaForCausalLM.from_pretrained` reads.
///
/// # Errors
/// [`ModelError::File`](crate::ModelError::File) for a model without a place in this format,
/// [`ModelError::NonFinite`](crate::ModelError::NonFinite), [`ModelError::Io`](crate::ModelError::Io).
pub fn export_hf(weights: &MambaWeights, folder: &Path, dtype: Dtype) -> Result<()> {
    let (c, lm) = (&weights.config().backbone, &weights.config().lm);
    let Some(lm) = lm else {
        return Err(bad(folder, "lm", "is absent; a bare backbone has no place in this format"));
    };
    let tensors = checkpoint_tensors(weights, Style::HuggingFace, folder, dtype)?;
    let name = match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
    };
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
    });
    std::fs::create_dir_all(folder).map_err(io(folder, "create the folder"))?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    write(&folder.join("model.safetensors"), tensors, dtype, metadata)?;
    write_json(&folder.join("config.json"), &config)
}

/// Every tensor in a checkpoint's layout.
pub(super) fn checkpoint_tensors(
    weights: &MambaWeights,
    style: Style,
    path: &Path,
    dtype: Dtype,
) -> Result<Vec<Encoded>> {
    weights.check_finite()?;
    let all = entries(weights.table(), style, path)?;
    let encode = |e: super::mapping::Entry| {
        let values = weights.get(&e.own)?;
        // Of the three types only f16 cannot hold every weight.
        if let Some(v) = values.iter().find(|v| dtype == Dtype::F16 && v.abs() >= 65_520.0) {
            return Err(bad(path, e.name, format!("holds {v}, beyond the range of f16; use bf16 or f32")));
        }
        let bytes = dtype.encode(&e.to_checkpoint(values));
        Ok((e.name, e.shape, bytes))
    };
    all.into_iter().map(encode).collect()
}

pub(super) fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| bad(path, "config", e.to_string()))?;
    atomic_write(path, |file| file.write_all(text.as_bytes()))
}
