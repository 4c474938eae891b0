//! Small models, doctored copies of their files, and what every refusal must look like.

use mamba_model::files::load_pretrained;
use mamba_model::{LmHeadConfig, MambaConfig, MambaWeights, ModelConfig, ModelError};
use std::fs;
use std::path::Path;

pub fn lm(vocab_size: usize, pad_vocab_size_multiple: usize, tied: bool) -> MambaWeights {
    let lm = LmHeadConfig { vocab_size, pad_vocab_size_multiple, tied };
    MambaWeights::init(&ModelConfig::language_model(MambaConfig::new(6, 2), lm), 1).unwrap()
}

pub fn model(tied: bool) -> MambaWeights {
    lm(11, 1, tied)
}

/// Header text and data of a safetensors file.
pub fn split(bytes: &[u8]) -> (String, Vec<u8>) {
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (String::from_utf8(bytes[8..8 + n].to_vec()).unwrap(), bytes[8 + n..].to_vec())
}

pub fn join(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A tensor of a safetensors file: name, type, shape, bytes.
pub type Tensor = (String, String, Vec<usize>, Vec<u8>);

pub fn tensors(file: &Path) -> Vec<Tensor> {
    let (header, data) = split(&fs::read(file).unwrap());
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&header).unwrap();
    let rows = header.into_iter().filter(|(name, _)| name != "__metadata__");
    rows.map(|(name, row)| {
        let numbers = |key: &str| -> Vec<usize> { serde_json::from_value(row[key].clone()).unwrap() };
        let at = numbers("data_offsets");
        (name, row["dtype"].as_str().unwrap().to_owned(), numbers("shape"), data[at[0]..at[1]].to_vec())
    })
    .collect()
}

pub fn write_tensors(file: &Path, tensors: &[Tensor]) {
    let (mut rows, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let (start, end) = (data.len(), data.len() + bytes.len());
        rows.push(format!(
            "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        ));
        data.extend(bytes);
    }
    fs::write(file, join(&format!("{{{}}}", rows.join(",")), &data)).unwrap();
}

/// Replaces the first `from` of a text file; the old text comes back.
pub fn edit(file: &Path, from: &str, to: &str) -> String {
    let old = fs::read_to_string(file).unwrap();
    let new = old.replacen(from, to, 1);
    assert_ne!(new, old, "`{from}` is not in {}", file.display());
    fs::write(file, new).unwrap();
    old
}

/// Loads and expects an error about this field whose problem holds `problem`.
pub fn refused(what: &str, path: &Path, field: &str, problem: &str) {
    match load_pretrained(path) {
        Ok(_) => panic!("{what} was accepted"),
        Err(ModelError::File { field: f, problem: p, .. }) => {
            assert!(f == field && p.contains(problem), "{what}: `{f}` {p}\n wanted: `{field}` {problem}")
        }
        Err(other) => panic!("{what}: {other:?}\n wanted: `{field}` {problem}"),
    }
    memory_is_bounded(what);
}

/// Peak memory of this process, all tests together, their own buffers included. Measured: 130 MiB resident and 290
/// MiB of addresses; the hostile files ask for up to 2^64 bytes.
pub fn memory_is_bounded(what: &str) {
    if cfg!(target_os = "linux") {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let kib = |key: &str| -> u64 {
            let line = status.lines().find(|l| l.starts_with(key)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let (resident, addresses) = (kib("VmHWM:") >> 10, kib("VmPeak:") >> 10);
        assert!(
            resident < 256 && addresses < 2048,
            "{what}: {resident} MiB resident, {addresses} MiB of addresses"
        );
    }
}
