//! Golden language-model checkpoints and their batches.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::golden::{self, Case};
use crate::tolerance::Checks;
use mamba_model::MambaWeights;
use std::path::PathBuf;

/// The golden checkpoints, below `golden/lm`.
pub const FOLDERS: [&str; 4] = ["hf_tied", "hf_untied", "ss_tied", "ss_cfg"];

/// Where a checkpoint lies.
pub fn folder(name: &str) -> PathBuf {
    golden::folder().join("lm").join(name)
}

/// One batch of a checkpoint.
#[derive(Debug)]
pub struct Batch {
    /// Its golden data.
    pub case: Case,
    /// Sequences.
    pub batch: usize,
    /// `[batch, seq_len]`.
    pub ids: Vec<u32>,
    /// Shifted: position t predicts the label of t + 1.
    pub targets: Vec<i32>,
}

/// Reads a checkpoint's batch; panics where it is damaged.
pub fn batch(name: &str) -> Batch {
    let case = Case::read(&format!("lm/{name}/golden"));
    let shape: Vec<usize> =
        case.config["ids_shape"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect();
    let ids = case.get("input_ids").iter().map(|&id| id as u32).collect();
    let labels: Vec<i32> = case.get("labels").iter().map(|&l| l as i32).collect();
    let targets = labels.chunks(shape[1]).flat_map(|row| row[1..].iter().copied().chain([-100])).collect();
    Batch { case, batch: shape[0], ids, targets }
}

/// Gradient of a tensor of ours in the checkpoint's layout, from the name of the golden tensor.
pub fn checkpoint_gradient<T: Copy + Into<f64>>(
    golden: &str,
    grads: &[T],
    weights: &MambaWeights,
) -> Vec<f64> {
    let name = golden.trim_start_matches("backbone.").replace(".mixer", "");
    let name = match name.as_str() {
        "embeddings.weight" | "embedding.weight" => "embedding".to_owned(),
        "lm_head.weight" => "lm_head".to_owned(),
        n if n.ends_with("conv1d.weight") || n.ends_with("dt_proj.weight") => n.to_owned(),
        n => n.trim_end_matches(".weight").to_owned(),
    };
    let p = weights.table().get(&name).unwrap();
    let values: Vec<f64> = p.span.of(grads).iter().map(|&g| g.into()).collect();
    let linear = ["in_proj", "x_proj", "out_proj", "dt_proj.weight"].iter().any(|l| name.ends_with(l));
    match (linear, p.shape.as_slice()) {
        (true, &[rows, cols]) => (0..cols)
            .flat_map(|c| (0..rows).map(move |r| (r, c)))
            .map(|(r, c)| values[r * cols + c])
            .collect(),
        _ => values,
    }
}

/// Compares logits, loss and gradients; the gradients are those of the mean loss.
pub fn check<T: Copy + Into<f64>>(
    checks: &mut Checks,
    b: &Batch,
    weights: &MambaWeights,
    (logits, loss, grads): (&[T], f64, &[T]),
) {
    b.case.check(checks, "lm/logits", "logits", logits);
    check_training(checks, b, weights, loss, grads);
}

/// Compares loss and gradients.
pub fn check_training<T: Copy + Into<f64>>(
    checks: &mut Checks,
    b: &Batch,
    weights: &MambaWeights,
    loss: f64,
    grads: &[T],
) {
    b.case.check(checks, "lm/loss", "loss", &[loss]);
    let mut compared = 0;
    for name in b.case.names().filter_map(|n| n.strip_prefix("grad/")) {
        let got = checkpoint_gradient(name, grads, weights);
        b.case.check(checks, "lm/grad", &format!("grad/{name}"), &got);
        compared += 1;
    }
    assert_eq!(compared, weights.table().iter().count());
}
