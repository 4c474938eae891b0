use crate::error::{ModelError, Result};
use std::sync::{Mutex, PoisonError};

/// Threads that an engine may be asked for; each has scratch of its own.
pub const MAX_THREADS: usize = 1024;

/// Threads of an engine: its own where a number was asked for, else the global pool.
#[derive(Debug)]
pub(super) struct Pool {
    own: Option<rayon::ThreadPool>,
}

impl Pool {
    pub fn new(threads: Option<usize>) -> Result<Self> {
        let own = match threads {
            None => None,
            Some(n) if !(1..=MAX_THREADS).contains(&n) => {
                let expected = "1 to 1,024, or absent for all cores";
                return Err(ModelError::Config { field: "threads", value: n.to_string(), expected });
            }
            Some(n) => {
                let built = rayon::ThreadPoolBuilder::new().num_threads(n).build();
                Some(built.map_err(|source| ModelError::Threads { threads: n, source })?)
            }
        };
        Ok(Self { own })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.own.as_ref().map_or_else(rayon::current_num_threads, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `op` on one of the threads, so that the parallel loops inside start without crossing over.
    pub fn run<R: Send>(&self, op: impl FnOnce() -> R + Send) -> R {
        match &self.own {
            Some(pool) => pool.install(op),
            None => rayon::scope(|_| op()),
        }
    }
}

/// One scratch object a thread.
#[derive(Debug)]
pub(super) struct Slots<T>(Vec<Mutex<T>>);

impl<T: Send> Slots<T> {
    pub fn new(threads: usize, make: impl Fn() -> T) -> Self {
        Self((0..threads.max(1)).map(|_| Mutex::new(make())).collect())
    }

    /// Lends this thread's object to `op`, which must start no parallel work.
    pub fn with<R>(&self, op: impl FnOnce(&mut T) -> R) -> R {
        let slot = rayon::current_thread_index().unwrap_or(0) % self.0.len();
        op(&mut self.0[slot].lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
