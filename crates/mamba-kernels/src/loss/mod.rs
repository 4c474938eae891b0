//! Cross-entropy and its gradient: `kernels/loss`.

mod cross_entropy;

pub use cross_entropy::{CrossEntropy, CrossEntropyStaged, LossTotals, SumLoss};
