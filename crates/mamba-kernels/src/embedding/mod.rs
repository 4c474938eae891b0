//! Embedding lookup and its gradient: `kernels/embedding`.

mod lookup;

pub use lookup::{EmbeddingBackward, EmbeddingForward};
