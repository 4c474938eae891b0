//! `cargo run -p mamba-data --example inspect -- PATH`: what a data set holds.

use mamba_data::{Corpus, CorpusOptions, Part};
use std::path::PathBuf;

fn main() -> Result<(), mamba_data::DataError> {
    let path = std::env::args().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let corpus = Corpus::open(&path, &CorpusOptions::default())?;
    println!("{}: {} tokens, vocabulary {}", path.display(), corpus.len(), corpus.vocab_size());
    println!("train {}, validation {}", corpus.part_len(Part::Train), corpus.part_len(Part::Validation));
    if let Some(bits) = corpus.unigram_bits_per_byte(Part::Validation) {
        println!("unigram entropy of the validation part: {bits:.3} bits a byte");
    }
    for skipped in corpus.skipped().iter().take(10) {
        println!("left out: {}, {}", skipped.path.display(), skipped.reason);
    }
    Ok(())
}
