//! Ordered sums over parts: `kernels/fold`.

mod parts;

pub use parts::FoldParts;
