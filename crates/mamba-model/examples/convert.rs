//! Converts weights from one format to another. What is read: a weights file of this crate, a Hugging Face folder, a
//! folder in the original state-spaces naming.
//!
//! ```text
//! cargo run --release -p mamba-model --example convert -- FROM TO [native|hf|state-spaces] [f32|bf16|f16]
//! ```
//!
//! Without arguments it makes a small model, takes it through every format and compares.

use mamba_model::files::{Dtype, detect, export_hf, export_state_spaces, load_pretrained, save_weights};
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        [] => tour(),
        [from, to] => convert(from, to, "native", "f32"),
        [from, to, format] => convert(from, to, format, "f32"),
        [from, to, format, dtype] => convert(from, to, format, dtype),
        _ => Err("FROM TO [native|hf|state-spaces] [f32|bf16|f16]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

fn convert(from: &str, to: &str, format: &str, dtype: &str) -> Result<(), Box<dyn Error>> {
    let kind = detect(Path::new(from))?;
    let weights = load_pretrained(Path::new(from))?;
    write(&weights, Path::new(to), format, dtype)?;
    let (tensors, values) = (weights.table().iter().len(), weights.table().param_count());
    println!("{from} ({kind:?}) → {to} ({format}, {dtype}): {tensors} tensors, {values} values");
    Ok(())
}

fn write(weights: &MambaWeights, to: &Path, format: &str, dtype: &str) -> Result<(), Box<dyn Error>> {
    let dtype = match dtype {
        "f32" => Dtype::F32,
        "bf16" => Dtype::Bf16,
        "f16" => Dtype::F16,
        other => return Err(format!("{other} is no type; f32, bf16 or f16 is wanted").into()),
    };
    match format {
        "native" if dtype != Dtype::F32 => return Err("native files hold f32".into()),
        "native" => save_weights(to, weights)?,
        "hf" => export_hf(weights, to, dtype)?,
        "state-spaces" => export_state_spaces(weights, to, dtype)?,
        other => return Err(format!("{other} is no format; native, hf or state-spaces is wanted").into()),
    }
    Ok(())
}

/// Native to Hugging Face to state-spaces and back.
fn tour() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let config = ModelConfig::language_model(MambaConfig::new(32, 2), LmHeadConfig::new(256));
    let weights = MambaWeights::init(&config, 7)?;
    save_weights(Path::new(&at("a.safetensors")), &weights)?;
    convert(&at("a.safetensors"), &at("hf"), "hf", "f32")?;
    convert(&at("hf"), &at("original"), "state-spaces", "f32")?;
    convert(&at("original"), &at("b.safetensors"), "native", "f32")?;
    let same = load_pretrained(Path::new(&at("b.safetensors")))? == weights;
    println!("the same weights at the end: {same}");
    if same { Ok(()) } else { Err("the weights changed on the way".into()) }
}
