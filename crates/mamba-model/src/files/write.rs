//! Safetensors files, written as a stream: same weights, same bytes.

use super::mapping::Entry;
use super::source::Dtype;
use super::{atomic_write, bad};
use crate::error::Result;
use crate::params::MambaWeights;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Elements that are encoded at a time.
const PIECE: usize = 1 << 16;

/// Writes a model's tensors under the names and in the layouts of `entries`, whole or not at all.
pub(super) fn write(
    path: &Path,
    weights: &MambaWeights,
    mut entries: Vec<Entry>,
    dtype: Dtype,
    metadata: &[(&str, &str)],
) -> Result<()> {
    weights.check_finite()?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let tensors = entries
        .iter()
        .map(|entry| Ok((entry, weights.get(&entry.own)?)))
        .collect::<Result<Vec<(&Entry, &[f32])>>>()?;
    for (entry, values) in &tensors {
        if let Some(v) = values.iter().find(|&&v| !dtype.round(v).is_finite()) {
            let problem = format!("holds {v}, beyond the range of {dtype:?}; write f32");
            return Err(bad(path, &entry.name, problem));
        }
    }
    let header = header(&entries, dtype, metadata).map_err(|e| bad(path, "header", e.to_string()))?;
    atomic_write(path, |file| write_parts(file, &header, &tensors, dtype))
}

fn write_parts(
    file: &mut File,
    header: &str,
    tensors: &[(&Entry, &[f32])],
    dtype: Dtype,
) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let mut bytes = Vec::new();
    for (entry, values) in tensors {
        for piece in entry.to_checkpoint(values).chunks(PIECE) {
            bytes.clear();
            dtype.encode(piece, &mut bytes);
            out.write_all(&bytes)?;
        }
    }
    out.flush()
}

/// The header, padded with spaces to a multiple of 8 bytes. Written by hand: the order of its keys is part of the
/// file.
fn header(entries: &[Entry], dtype: Dtype, metadata: &[(&str, &str)]) -> serde_json::Result<String> {
    let mut parts = Vec::new();
    if !metadata.is_empty() {
        let pairs = metadata
            .iter()
            .map(|(k, v)| Ok(format!("{}:{}", serde_json::to_string(k)?, serde_json::to_string(v)?)))
            .collect::<serde_json::Result<Vec<_>>>()?;
        parts.push(format!("\"__metadata__\":{{{}}}", pairs.join(",")));
    }
    let mut start = 0;
    for entry in entries {
        let end = start + entry.shape.iter().product::<usize>() * dtype.size();
        let (name, shape) = (serde_json::to_string(&entry.name)?, serde_json::to_string(&entry.shape)?);
        let dtype = dtype.name();
        parts.push(format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}"
        ));
        start = end;
    }
    let text = format!("{{{}}}", parts.join(","));
    let length = text.len().next_multiple_of(8);
    Ok(format!("{text:length$}"))
}
