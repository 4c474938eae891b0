//! `mamba eval`: loss of a model on a text.

use crate::args::EvalArgs;
use crate::data::{Codec, Corpus, DataSpec};
use crate::error::{CliError, Result, at_least_one};
use crate::memory;
use crate::report::{print_line, thousands};
use crate::train::settings::default_dtype;
use crate::weights;
use mamba_trainer::{LmTrainer, LossSums};

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<()> {
    at_least_one("--batch", args.batch)?;
    at_least_one("--seq-len", args.seq_len)?;
    let limit = at_least_one("--max-batches", args.max_batches.unwrap_or(usize::MAX))?;
    let threads = args.threads.map(|t| at_least_one("--threads", t)).transpose()?;
    let model = weights::load_lm(&args.model, "eval")?;
    let vocab_size = model.config().lm.as_ref().map_or(0, |lm| lm.vocab_size);
    let tokenizer = Codec::tokenizer_of(&args.model, args.tokenizer.as_deref());
    let spec = DataSpec {
        path: args.data.clone(),
        tokenizer,
        val_fraction: 1.0,
        token_width: args.token_width.into(),
    };
    let corpus = Corpus::open(&spec)?;
    if corpus.vocab_size() > vocab_size {
        return Err(CliError::Vocabulary { data: corpus.vocab_size(), model: vocab_size });
    }
    memory::check(model.config(), args.batch, args.seq_len, false, args.device)?;
    let mut builder = LmTrainer::builder(model, args.batch, args.seq_len)
        .device(args.device)
        .dtype(args.dtype.unwrap_or(default_dtype(args.device)));
    if let Some(threads) = threads {
        builder = builder.threads(threads);
    }
    let mut trainer = builder.build()?;
    let mut sums = LossSums::default();
    for batch in corpus.validation(args.batch, args.seq_len, limit)? {
        sums.add(&trainer.evaluate(&batch.view())?);
    }
    report(&sums, &corpus);
    Ok(())
}

fn report(sums: &LossSums, corpus: &Corpus) {
    let loss = sums.mean();
    print_line(&format!("tokens           {}", thousands(sums.tokens)));
    print_line(&format!("loss             {loss:.4} nats per token"));
    print_line(&format!("perplexity       {:.3}", loss.exp()));
    if let Some(bytes) = corpus.bytes_per_token() {
        print_line(&format!("model            {:.4} bits per byte", loss * std::f64::consts::LOG2_E / bytes));
    }
    if let Some(bits) = corpus.unigram_bits_per_byte() {
        print_line(&format!("unigram entropy  {bits:.4} bits per byte"));
    }
}
