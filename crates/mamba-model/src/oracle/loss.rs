use crate::input::IGNORE_INDEX;

/// Sums of a cross-entropy and the gradient of the weighted sum.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// Σ weight · −log p(target).
    pub nll: f64,
    /// Σ weight over counted targets.
    pub weight: f64,
    /// Counted targets.
    pub tokens: u64,
    /// Gradient of `nll`, `[rows, columns]`.
    pub d_logits: Vec<f64>,
}

/// Cross-entropy of logits `[rows, columns]`; targets of −100 do not count, absent weights are 1.
pub fn cross_entropy(logits: &[f64], targets: &[i32], weights: Option<&[f32]>) -> CrossEntropy {
    let columns = logits.len() / targets.len().max(1);
    let mut sums = CrossEntropy { nll: 0.0, weight: 0.0, tokens: 0, d_logits: vec![0.0; logits.len()] };
    for (i, (row, &target)) in logits.chunks(columns.max(1)).zip(targets).enumerate() {
        if target == IGNORE_INDEX {
            continue;
        }
        let weight = weights.map_or(1.0, |w| f64::from(w[i]));
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = row.iter().map(|l| (l - max).exp()).sum();
        sums.nll += weight * (total.ln() + max - row[target as usize]);
        sums.weight += weight;
        sums.tokens += 1;
        for (j, (d, l)) in sums.d_logits[i * columns..(i + 1) * columns].iter_mut().zip(row).enumerate() {
            *d = weight * ((l - max).exp() / total - f64::from(u8::from(j == target as usize)));
        }
    }
    sums
}
