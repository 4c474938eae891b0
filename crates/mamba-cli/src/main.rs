//! Command line for training, evaluating and sampling Mamba language models.
//!
//! Code map: `args` is the command line, `error` all that can go wrong with its exit code. `train` (`settings`,
//! `session`, `stop`), `generate`, `eval`, `info`, `convert` and `bench` are the commands. They stand on `data` (text to
//! batches), `weights` (models from whatever holds them), `memory` (what cannot fit), `sampling`, and for the run's
//! folder `run_folder`, `report`, `tensorboard` and `plot`.
//!
//! Progress and errors go to stderr, results to stdout. No command panics on what a user, a file or a signal can cause.

mod args;
mod bench;
mod convert;
mod data;
mod error;
mod eval;
mod generate;
mod info;
mod memory;
mod plot;
mod report;
mod run_folder;
mod sampling;
mod tensorboard;
mod train;
mod weights;

use args::{Cli, Command};
use error::Result;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    start_tracing(cli.verbose);
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.one_line());
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Train(args) => train::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Info(args) => info::run(args),
        Command::Export(args) => convert::export(args),
        Command::Import(args) => convert::import(args),
        Command::Bench(args) => bench::run(args),
    }
}

/// One line for a bad command line; help and version as clap prints them.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    let help = [
        ErrorKind::DisplayHelp,
        ErrorKind::DisplayVersion,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
    ];
    if help.contains(&error.kind()) {
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    let line = one_line(&error.to_string());
    complain(line.strip_prefix("error: ").unwrap_or(&line));
    ExitCode::from(2)
}

/// clap's message before the usage, in one line.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut listing = false;
    let message = |l: &&str| !l.starts_with("Usage:") && !l.starts_with("For more information");
    for part in text.lines().take_while(message).filter(|l| !l.trim().is_empty()) {
        let (item, begin) = (part.starts_with("  "), part.trim());
        let list_item = item && !begin.starts_with("tip:");
        line.push_str(match () {
            () if line.is_empty() => "",
            () if begin.starts_with('[') || line.ends_with(':') => " ",
            () if listing && list_item => ", ",
            () => "; ",
        });
        listing = list_item;
        line.push_str(begin);
    }
    line
}

/// stderr may be closed; nothing more can be said then.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "error: {line}");
}

fn start_tracing(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_max_level(level).with_ansi(ansi).with_writer(std::io::stderr).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_many_lines_keep_their_punctuation() {
        let said = |line: &str| one_line(&Cli::read(line.split(' ')).unwrap_err().to_string());
        for (line, expected) in [
            (
                "mamba generate",
                "error: the following required arguments were not provided: --model <MODEL>, --prompt <TEXT>",
            ),
            ("mamba evil", "error: unrecognized subcommand 'evil'; tip: a similar subcommand exists: 'eval'"),
            (
                "mamba train --data x --schedule fast",
                "error: invalid value 'fast' for '--schedule <SCHEDULE>' [possible values: constant, linear, cosine, wsd]",
            ),
        ] {
            assert_eq!(said(line), expected);
        }
    }
}
