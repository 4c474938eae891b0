//! `mamba generate`: text from a trained model.

use crate::args::GenerateArgs;
use crate::data::Codec;
use crate::error::{CliError, Result, thread_count};
use crate::report::printable;
use crate::sampling::{Sampler, Sampling};
use crate::train::settings::default_dtype;
use crate::weights;
use mamba_model::MambaWeights;
use mamba_trainer::Decoder;
use std::io::{IsTerminal, Write};

/// Draws token after token from a model.
#[derive(Debug)]
pub struct Generator {
    decoder: Decoder,
    sampler: Sampler,
    vocab_size: usize,
}

impl Generator {
    /// A generator that draws from `decoder`, which stands at the start of a sequence of a model of these weights.
    pub fn new(weights: &MambaWeights, decoder: Decoder, sampler: Sampler) -> Self {
        let vocab_size = weights.config().lm.as_ref().map_or(0, |lm| lm.vocab_size);
        Self { decoder, sampler, vocab_size }
    }

    /// Goes on from a prompt of at least one token; `each` sees every new token as soon as it is drawn.
    pub fn run(
        &mut self,
        prompt: &[u32],
        tokens: usize,
        mut each: impl FnMut(u32) -> Result<()>,
    ) -> Result<Vec<u32>> {
        if prompt.is_empty() {
            return Err(CliError::Prompt { problem: "gives no tokens; give at least one".to_owned() });
        }
        let mut ids = Vec::new();
        let mut logits = self.decoder.prefill(prompt)?;
        while ids.len() < tokens {
            // Rows past the vocabulary are padding.
            let id = self.sampler.next(&logits[..self.vocab_size])?;
            ids.push(id);
            each(id)?;
            logits = self.decoder.step(&[id])?;
        }
        Ok(ids)
    }
}

/// Runs the command.
pub fn run(args: &GenerateArgs) -> Result<()> {
    let s = args.sampling;
    let sampling = Sampling::new(s.temperature, s.top_k, s.top_p)?;
    if let Some(threads) = args.threads {
        thread_count(threads)?;
    }
    let model = weights::load_lm(&args.model, "generate")?;
    let vocab_size = model.config().lm.as_ref().map_or(0, |lm| lm.vocab_size);
    let codec = Codec::for_model(&args.model, args.tokenizer.as_deref(), vocab_size)?;
    let prompt = codec.encode(&args.prompt)?;
    let dtype = args.dtype.unwrap_or(default_dtype(args.device));
    let decoder = Decoder::with_threads(&model, 1, args.device, dtype, args.threads)?;
    let mut generator = Generator::new(&model, decoder, Sampler::new(sampling, s.seed));
    let mut out = std::io::stdout().lock();
    if args.stream {
        write(&mut out, args.prompt.as_bytes())?;
        let mut text = Stream::default();
        generator.run(&prompt, args.tokens, |id| write(&mut out, &text.push(&codec, id)?))?;
        write(&mut out, &text.pending)?;
    } else {
        let ids = generator.run(&prompt, args.tokens, |_| Ok(()))?;
        write(&mut out, args.prompt.as_bytes())?;
        write(&mut out, &codec.decode(&ids)?)?;
    }
    write(&mut out, b"\n")
}

/// Raw bytes: a model may write what is not UTF-8, and nothing is lost on the way. Only a terminal is spared control
/// characters.
fn write(out: &mut (impl Write + IsTerminal), bytes: &[u8]) -> Result<()> {
    let written = match out.is_terminal() {
        true => out.write_all(printable(bytes).as_bytes()),
        false => out.write_all(bytes),
    };
    let written = written.and_then(|()| out.flush());
    written.map_err(crate::error::io("stdout".as_ref(), "write"))
}

/// Text as it grows. A token can change how the ones before it are written, so a few are decoded together.
#[derive(Debug, Default)]
struct Stream {
    pending: Vec<u8>,
}

impl Stream {
    /// The bytes that are complete with this token.
    fn push(&mut self, codec: &Codec, id: u32) -> Result<Vec<u8>> {
        self.pending.extend(codec.decode(&[id])?);
        let complete = match std::str::from_utf8(&self.pending) {
            Err(e) if e.error_len().is_none() => e.valid_up_to(),
            _ => self.pending.len(),
        };
        Ok(self.pending.drain(..complete).collect())
    }
}
