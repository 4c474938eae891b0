//! Embedding lookup and its gradient: `kernels/embedding`.

mod lookup;

pub use lookup::{Count, EmbeddingBackward, EmbeddingForward, Fold, Place, Ranks, Runs, Starts};
