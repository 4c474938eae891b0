//! Names and layouts of the public checkpoints.

use super::bad;
use crate::error::Result;
use crate::params::{Param, ParamTable};
use std::borrow::Cow;
use std::path::Path;

/// Side of the squares in which a matrix is transposed.
const TILE: usize = 32;

/// Naming of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `MambaForCausalLM` of transformers.
    HuggingFace,
    /// `MambaModel` of transformers: the same without `backbone.` and without a head.
    HuggingFaceBare,
    /// `MambaLMHeadModel` of state-spaces.
    StateSpaces,
}

impl Style {
    fn prefix(self) -> &'static str {
        if self == Self::HuggingFaceBare { "" } else { "backbone." }
    }

    /// Name of the embedding's tensor.
    pub fn embedding(self) -> String {
        let plural = if self == Self::StateSpaces { "" } else { "s" };
        format!("{}embedding{plural}.weight", self.prefix())
    }
}

/// One tensor of a checkpoint and its place here.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub fn same(p: &Param) -> Self {
        Self::plain(p.name.clone(), p)
    }

    fn plain(name: String, p: &Param) -> Self {
        Self { name, shape: p.shape.clone(), own: p.name.clone(), transposed: None }
    }

    /// A head that repeats the embedding.
    pub fn tied_head(table: &ParamTable) -> Result<Self> {
        Ok(Self::plain("lm_head.weight".to_owned(), table.get("embedding")?))
    }

    /// Whether the layouts differ.
    pub fn is_transposed(&self) -> bool {
        self.transposed.is_some()
    }

    /// From the checkpoint's layout to ours.
    pub fn to_own(&self, values: &[f32], out: &mut [f32]) {
        match self.transposed {
            Some((rows, cols)) => transpose(values, out, rows, cols),
            None => out.copy_from_slice(values),
        }
    }

    /// From our layout to the checkpoint's.
    pub fn to_checkpoint<'v>(&self, values: &'v [f32]) -> Cow<'v, [f32]> {
        match self.transposed {
            Some((rows, cols)) => {
                let mut out = vec![0.0; values.len()];
                transpose(values, &mut out, cols, rows);
                Cow::Owned(out)
            }
            None => Cow::Borrowed(values),
        }
    }
}

/// `[rows, cols]` to `[cols, rows]`.
fn transpose(x: &[f32], out: &mut [f32], rows: usize, cols: usize) {
    for top in (0..rows).step_by(TILE) {
        for left in (0..cols).step_by(TILE) {
            for r in top..rows.min(top + TILE) {
                for c in left..cols.min(left + TILE) {
                    out[c * rows + r] = x[r * cols + c];
                }
            }
        }
    }
}

/// The checkpoint's tensors of a model, in our order.
pub(super) fn entries(table: &ParamTable, style: Style, path: &Path) -> Result<Vec<Entry>> {
    table.iter().map(|p| entry(p, style, path)).collect()
}

fn entry(p: &Param, style: Style, path: &Path) -> Result<Entry> {
    let prefix = style.prefix();
    match p.name.as_str() {
        "embedding" => return Ok(Entry::plain(style.embedding(), p)),
        "lm_head" => return Ok(Entry::plain("lm_head.weight".to_owned(), p)),
        "norm_f" => return Ok(Entry::plain(format!("{prefix}norm_f.weight"), p)),
        _ => {}
    }
    let layer = p.name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    let Some((index, tensor)) = layer else {
        return Err(bad(path, &p.name, "has no place in this format; use the native one"));
    };
    let block = format!("{prefix}layers.{index}");
    let mixer = |name: &str| Entry::plain(format!("{block}.mixer.{name}"), p);
    Ok(match (tensor, p.shape.as_slice()) {
        ("norm", _) => Entry::plain(format!("{block}.norm.weight"), p),
        ("conv1d.weight", &[channels, taps]) => Entry { shape: vec![channels, 1, taps], ..mixer(tensor) },
        ("in_proj" | "x_proj" | "out_proj" | "dt_proj.weight", &[inputs, outputs]) => Entry {
            shape: vec![outputs, inputs],
            transposed: Some((outputs, inputs)),
            ..mixer(&format!("{}.weight", tensor.trim_end_matches(".weight")))
        },
        (other, _) => mixer(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LmHeadConfig, MambaConfig, ModelConfig};

    #[test]
    fn layouts_go_there_and_back() {
        let p = |name: &str, shape: &[usize]| {
            let config = ModelConfig::language_model(MambaConfig::new(40, 1), LmHeadConfig::new(5));
            let table = ParamTable::new(&config).unwrap();
            let e = entry(table.get(name).unwrap(), Style::HuggingFace, Path::new("x")).unwrap();
            assert_eq!(e.shape, shape, "{name}");
            e
        };
        let e = p("layers.0.x_proj", &[35, 80]);
        let values: Vec<f32> = (0..35 * 80).map(|i| i as f32).collect();
        let there = e.to_checkpoint(&values);
        assert_eq!(there[80], values[1], "row 1, column 0 there is row 0, column 1 here");
        let mut back = vec![0.0; values.len()];
        e.to_own(&there, &mut back);
        assert_eq!(back, values);
        assert_eq!(p("layers.0.conv1d.weight", &[80, 1, 4]).name, "backbone.layers.0.mixer.conv1d.weight");
        assert_eq!(p("layers.0.dt_proj.bias", &[80]).name, "backbone.layers.0.mixer.dt_proj.bias");
        assert_eq!(p("embedding", &[5, 40]).name, "backbone.embeddings.weight");
    }
}
