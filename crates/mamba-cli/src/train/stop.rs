//! Ctrl-C and termination: the first asks the training to stop after its step, the second ends the process.

use crate::error::{CliError, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a process that SIGINT ended.
const KILLED: i32 = 130;

/// Whether the training should stop.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// Watches for SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// [`CliError::Signals`], for instance on a second call in one process.
    pub fn watch() -> Result<Self> {
        let stop = Self::default();
        let asked = stop.asked.clone();
        ctrlc::set_handler(move || {
            if asked.swap(true, Ordering::Relaxed) {
                std::process::exit(KILLED);
            }
        })
        .map_err(CliError::Signals)?;
        Ok(stop)
    }

    /// Whether a stop was asked for.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}
