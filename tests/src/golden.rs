//! Reads the reference data of `tests/golden`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::tolerance::Checks;
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The golden data: below the working folder of `cargo test`, and of an archive of the GPU tests.
pub fn folder() -> PathBuf {
    PathBuf::from("golden")
}

/// Half an ulp of f32, relative: what a reference stored as f32 may be off.
const F32_ROUNDING: f64 = 1.0 / (1 << 24) as f64;

/// One case: its sizes and options, and its tensors widened to f64.
#[derive(Debug)]
pub struct Case {
    /// The file's name below `golden`.
    pub name: String,
    /// `config` of the JSON file.
    pub config: serde_json::Value,
    tensors: BTreeMap<String, Vec<f64>>,
    /// Those that are stored in f64.
    exact: BTreeSet<String>,
}

impl Case {
    /// Reads `golden/{name}.json` and `.safetensors`; panics where they are absent or damaged.
    pub fn read(name: &str) -> Self {
        let path = folder().join(name);
        let json = std::fs::read(path.with_extension("json")).unwrap();
        let mut json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let bytes = std::fs::read(path.with_extension("safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| (name.to_owned(), widened(view.dtype(), view.data())));
        let exact =
            file.iter().filter(|(_, view)| view.dtype() == Dtype::F64).map(|(name, _)| name.to_owned());
        Self {
            name: name.to_owned(),
            config: json["config"].take(),
            tensors: tensors.collect(),
            exact: exact.collect(),
        }
    }

    /// Relative error that the storage of a reference brings: none in f64.
    pub fn rounding(&self, name: &str) -> f64 {
        if self.exact.contains(name) { 0.0 } else { F32_ROUNDING }
    }

    /// Compares values with a reference of this case.
    pub fn check<T: Copy + Into<f64>>(&self, checks: &mut Checks, quantity: &str, name: &str, got: &[T]) {
        let place = format!("{} {name}", self.name);
        checks.add(quantity, &place, relative_error(got, self.get(name)), self.rounding(name));
    }

    /// A tensor; panics where there is none of this name.
    pub fn get(&self, name: &str) -> &[f64] {
        self.tensors.get(name).unwrap_or_else(|| panic!("no tensor `{name}`"))
    }

    /// A tensor, where the case holds it.
    pub fn find(&self, name: &str) -> Option<&[f64]> {
        self.tensors.get(name).map(Vec::as_slice)
    }

    /// A size of the config; panics where there is none of this name.
    pub fn size(&self, name: &str) -> usize {
        self.config[name].as_u64().unwrap_or_else(|| panic!("no size `{name}`")) as usize
    }

    /// Whether an option of the config is on.
    pub fn flag(&self, name: &str) -> bool {
        self.config[name].as_bool().unwrap_or_else(|| panic!("no option `{name}`"))
    }

    /// A tensor of f32 values.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.get(name).iter().map(|&x| x as f32).collect()
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

fn widened(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        Dtype::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        Dtype::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
        other => panic!("{other:?} in golden data"),
    }
}

/// ‖got - want‖ / ‖want‖ in the Euclidean norm (the plain norm of the difference where `want` is zero), as the golden
/// data's own figures are taken; panics at a NaN.
pub fn relative_error<T: Copy + Into<f64>>(got: &[T], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let off = norm(&mut got.iter().zip(want).map(|(&g, w)| g.into() - w));
    let size = norm(&mut want.iter().copied());
    assert!(off.is_finite(), "a value is not finite");
    if size > 0.0 { off / size } else { off }
}
