//! Names and layouts of the public checkpoints.

use super::bad;
use crate::error::Result;
use crate::params::{Param, ParamTable};
use std::path::Path;

/// Naming of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    HuggingFace,
    StateSpaces,
}

/// One tensor of a checkpoint and its place here.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Name in the checkpoint.
    pub name: String,
    /// Shape in the checkpoint.
    pub shape: Vec<usize>,
    /// Name here.
    pub own: String,
    /// (rows, columns) in the checkpoint, where the matrix is transposed here.
    transposed: Option<(usize, usize)>,
}

impl Entry {
    /// A tensor with the same name and layout on both sides.
    pub fn same(name: &str, shape: &[usize]) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec(), own: name.to_owned(), transposed: None }
    }

    /// From the checkpoint's layout to ours.
    pub fn to_own(&self, values: &[f32]) -> Vec<f32> {
        match self.transposed {
            Some((rows, cols)) => transpose(values, rows, cols),
            None => values.to_vec(),
        }
    }

    /// From our layout to the checkpoint's.
    pub fn to_checkpoint(&self, values: &[f32]) -> Vec<f32> {
        match self.transposed {
            Some((rows, cols)) => transpose(values, cols, rows),
            None => values.to_vec(),
        }
    }
}

fn transpose(x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|c| (0..rows).map(move |r| x[r * cols + c])).collect()
}

/// The checkpoint's tensors of a model, in our order.
pub(super) fn entries(table: &ParamTable, style: Style, path: &Path) -> Result<Vec<Entry>> {
    table.iter().map(|p| entry(p, style, path)).collect()
}

fn entry(p: &Param, style: Style, path: &Path) -> Result<Entry> {
    let plain = |name: String| Entry { name, shape: p.shape.clone(), own: p.name.clone(), transposed: None };
    let embedding = match style {
        Style::HuggingFace => "backbone.embeddings.weight",
        Style::StateSpaces => "backbone.embedding.weight",
    };
    match p.name.as_str() {
        "embedding" => return Ok(plain(embedding.to_owned())),
        "lm_head" => return Ok(plain("lm_head.weight".to_owned())),
        "norm_f" => return Ok(plain("backbone.norm_f.weight".to_owned())),
        _ => {}
    }
    let layer = p.name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    let Some((index, tensor)) = layer else {
        return Err(bad(path, &p.name, "has no place in this format; use the native one"));
    };
    let block = format!("backbone.layers.{index}");
    let [first, second] = [0, 1].map(|i| p.shape.get(i).copied().unwrap_or(1));
    Ok(match tensor {
        "norm" => plain(format!("{block}.norm.weight")),
        "conv1d.weight" => {
            Entry { shape: vec![first, 1, second], ..plain(format!("{block}.mixer.conv1d.weight")) }
        }
        "in_proj" | "x_proj" | "out_proj" | "dt_proj.weight" => Entry {
            shape: vec![second, first],
            transposed: Some((second, first)),
            ..plain(format!("{block}.mixer.{}.weight", tensor.trim_end_matches(".weight")))
        },
        other => plain(format!("{block}.mixer.{other}")),
    })
}
