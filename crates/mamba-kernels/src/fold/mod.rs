//! Ordered sums over parts: `kernels/fold`.

mod parts;

pub use parts::{Fold, FoldJobs, FoldParts, MAX_FOLDS};
