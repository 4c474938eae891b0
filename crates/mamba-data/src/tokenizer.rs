//! Text to tokens and back.

use crate::error::{DataError, Result, io};
use std::path::Path;

/// How text becomes tokens.
#[derive(Debug, Clone)]
pub enum Tokenizer {
    /// Every byte is a token: 256 of them.
    Bytes,
    /// A Hugging Face `tokenizer.json`.
    HuggingFace(Box<tokenizers::Tokenizer>),
}

/// Longest tokenizer file that is read.
const MAX_FILE: u64 = 256 << 20;

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`DataError::Io`], [`DataError::File`].
    pub fn open(path: &Path) -> Result<Self> {
        let size = std::fs::metadata(path).map_err(io(path, "open"))?.len();
        let bad = |problem: String| DataError::File { path: path.to_owned(), field: "tokenizer", problem };
        if size > MAX_FILE {
            return Err(bad(format!("has {size} bytes, at most {MAX_FILE} are read")));
        }
        let bytes = std::fs::read(path).map_err(io(path, "read"))?;
        let parsed =
            tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| bad(format!("cannot be read: {e}")))?;
        Ok(Self::HuggingFace(Box::new(parsed)))
    }

    /// Tokens in the vocabulary: one more than the largest id.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Bytes => 256,
            Self::HuggingFace(t) => t.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1),
        }
    }

    /// Tokens of a text, without special tokens.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::HuggingFace(t) => match t.encode(text, false) {
                Ok(encoding) => Ok(encoding.get_ids().to_vec()),
                Err(e) => Err(DataError::Tokenizer { action: "encode the text", problem: e.to_string() }),
            },
        }
    }

    /// Bytes of tokens; those of a part of a character may be no text yet.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`] for an id that the tokenizer does not know.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        match self {
            Self::Bytes => ids
                .iter()
                .map(|&id| {
                    u8::try_from(id).map_err(|_| DataError::Tokenizer {
                        action: "decode",
                        problem: format!("{id} is no byte"),
                    })
                })
                .collect(),
            Self::HuggingFace(t) => match t.decode(ids, false) {
                Ok(text) => Ok(text.into_bytes()),
                Err(e) => Err(DataError::Tokenizer { action: "decode", problem: e.to_string() }),
            },
        }
    }

    /// The token between two documents, where there is one.
    pub fn separator(&self) -> Option<u32> {
        match self {
            Self::Bytes => Some(u32::from(crate::text::SEPARATOR)),
            Self::HuggingFace(t) => ["<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>"]
                .iter()
                .find_map(|name| t.token_to_id(name)),
        }
    }
}
