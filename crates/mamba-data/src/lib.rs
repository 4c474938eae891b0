//! Text and token data sets for language-model training: memory-mapped, deterministic, resumable.
