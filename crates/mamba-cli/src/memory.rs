//! Refuses what cannot fit, before an allocation aborts the process.

use crate::error::{CliError, Result};
use mamba_model::{ModelConfig, ParamTable};
use mamba_trainer::Device;

/// Checks that a training with these sizes can fit the memory of this machine. Counts only what every engine needs,
/// so what it refuses is certain not to fit. `recompute` is `None` for commands that only go forward.
///
/// # Errors
/// [`CliError::Memory`]; [`CliError::Model`] for sizes beyond any address space.
pub fn check(
    model: &ModelConfig,
    batch: usize,
    seq_len: usize,
    recompute: Option<bool>,
    device: Device,
) -> Result<()> {
    let needed = training_bytes(model, batch, seq_len, recompute.unwrap_or(false))?;
    match (device, available()) {
        (Device::Cpu, Some(available)) if needed > u128::from(available) => {
            let gib = |bytes: u128| bytes as f64 / (1u64 << 30) as f64;
            let recompute = if recompute == Some(false) { ", or `--recompute`" } else { "" };
            Err(CliError::Memory { recompute, needed_gib: gib(needed), available_gib: gib(available.into()) })
        }
        _ => Ok(()),
    }
}

/// Weights, gradients and both moments; activations that the backward pass needs.
fn training_bytes(model: &ModelConfig, batch: usize, seq_len: usize, recompute: bool) -> Result<u128> {
    let arena = ParamTable::new(model)?.arena_len() as u128;
    let b = &model.backbone;
    let tokens = batch as u128 * seq_len as u128;
    // The block's input; x, z, the convolution's output and the scan's output.
    let kept = if recompute { b.d_model } else { b.d_model + 4 * b.d_inner() };
    Ok(4 * (4 * arena + tokens * b.n_layers as u128 * kept as u128))
}

/// Memory that can be taken without swapping, where the system tells.
fn available() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mamba_model::{LmHeadConfig, MambaConfig};

    #[test]
    fn the_systems_table_is_read() {
        let text = "MemTotal:       24689764 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(parse_available(text), Some(20_000_000 * 1024));
        assert_eq!(parse_available("MemTotal: 5 kB"), None);
        assert_eq!(parse_available("MemAvailable: many"), None);
    }

    #[test]
    fn bytes_grow_with_the_sizes() {
        let model = ModelConfig::language_model(MambaConfig::new(16, 2), LmHeadConfig::new(256));
        let arena = ParamTable::new(&model).unwrap().arena_len() as u128;
        // 64 tokens, 2 layers, 16 + 4 * 32 kept values.
        assert_eq!(training_bytes(&model, 2, 32, false).unwrap(), 4 * (4 * arena + 64 * 2 * 144));
        assert_eq!(training_bytes(&model, 2, 32, true).unwrap(), 4 * (4 * arena + 64 * 2 * 16));
        assert!(check(&model, 2, 32, None, Device::Cpu).is_ok());
        let error = check(&model, 1 << 30, 1 << 30, Some(true), Device::Cpu);
        assert!(available().is_none() || matches!(error, Err(CliError::Memory { .. })), "{error:?}");
    }
}
