//! `mamba eval`: loss of a model on a text.

use crate::args::EvalArgs;
use crate::data::{Codec, Corpus, DataSpec, holds_ids};
use crate::error::{CliError, Result, at_least_one, thread_count};
use crate::memory;
use crate::report::{print_line, thousands};
use crate::run_folder::{self, read_config};
use crate::train::settings::default_dtype;
use crate::weights;
use mamba_trainer::{LmTrainer, LossSums};

/// Tokens of a window where no run tells another number.
const SEQ_LEN: usize = 256;

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<()> {
    at_least_one("--batch", args.batch)?;
    args.seq_len.map(|n| at_least_one("--seq-len", n)).transpose()?;
    let limit = at_least_one("--max-batches", args.max_batches.unwrap_or(usize::MAX))?;
    let threads = args.threads.map(thread_count).transpose()?;
    let model = weights::load_lm(&args.model, "eval")?;
    let run = run_folder::around(&args.model).map(|root| read_config(root).map(|config| (root, config)));
    let run = run.transpose()?;
    let seq_len = args.seq_len.unwrap_or(run.as_ref().map_or(SEQ_LEN, |(_, config)| config.train.seq_len));
    if let Some((root, config)) = run {
        let of_bytes = config.data.tokenizer.is_none() && !holds_ids(&config.data.path);
        if of_bytes && holds_ids(&args.data) {
            return Err(CliError::IdsForBytes { path: args.data.clone(), run: root.to_owned() });
        }
    }
    let tokenizer = Codec::tokenizer_of(&args.model, args.tokenizer.as_deref());
    let spec = DataSpec {
        path: args.data.clone(),
        tokenizer,
        val_fraction: 1.0,
        token_width: args.token_width.into(),
    };
    let corpus = Corpus::open(&spec)?;
    corpus.check_vocabulary(model.config())?;
    memory::check(model.config(), args.batch, seq_len, None, args.device)?;
    let mut builder = LmTrainer::builder(model, args.batch, seq_len)
        .device(args.device)
        .dtype(args.dtype.unwrap_or(default_dtype(args.device)));
    if let Some(threads) = threads {
        builder = builder.threads(threads);
    }
    let mut trainer = builder.build()?;
    let mut sums = LossSums::default();
    for batch in corpus.validation(args.batch, seq_len, limit)? {
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
