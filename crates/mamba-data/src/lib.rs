//! Text and token data sets for language-model training: memory-mapped, deterministic, resumable.
//!
//! Code map, in the data's order: [`text`] reads files and folders, [`Tokenizer`] makes tokens of them, [`TokenFile`] maps
//! files of ids; [`Corpus`] holds all tokens and cuts them into parts; [`Sampler`] draws endless batches, and a
//! [`DataPosition`] is all it takes to go on; [`tasks`] has the two synthetic tasks of the Mamba paper.

pub mod tasks;
pub mod text;

mod corpus;
mod error;
mod mmap;
mod sampler;
mod token_file;
mod tokenizer;

pub use corpus::{Corpus, CorpusOptions, Part};
pub use error::{DataError, Result};
pub use sampler::{DataPosition, IGNORE_INDEX, LmBatch, Sampler, SamplerOptions, Shuffle, evenly_spread};
pub use text::Skipped;
pub use token_file::{TokenFile, Width};
pub use tokenizer::Tokenizer;

/// The README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
