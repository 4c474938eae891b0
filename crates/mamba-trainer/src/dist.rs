//! Data parallelism: the ranks of a group sum their gradients and take the same step.

use crate::error::{Result, TrainerError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One rank's end of a group.
///
/// Every rank calls `backward_step_dist` with the same options and the same learning rate; the gradient arenas are
/// summed in rank order, so all ranks see the same bits and decide alike. A rank whose end is dropped, or that does
/// not arrive before the deadline, breaks the group: every other rank gets a typed error, and a new group is needed.
#[derive(Debug)]
pub struct DistContext {
    rank: usize,
    world: usize,
    link: Link,
}

#[derive(Debug)]
enum Link {
    Alone,
    Threads(Arc<Hub>),
}

impl DistContext {
    /// A group of one: `backward_step_dist` is then byte-identical to `backward_step`.
    pub fn single() -> Self {
        Self { rank: 0, world: 1, link: Link::Alone }
    }

    /// The ends of a group of `world` threads of this process; each moves into its thread. No exchange waits
    /// longer than `deadline` for a rank.
    ///
    /// # Errors
    /// [`TrainerError::Setting`] for 0 ranks or a deadline of 0.
    pub fn threads(world: usize, deadline: Duration) -> Result<Vec<Self>> {
        let setting = |name, value: String, expected| TrainerError::Setting { name, value, expected };
        if world == 0 {
            return Err(setting("world", "0".to_owned(), "at least 1"));
        }
        if deadline.is_zero() {
            return Err(setting("deadline", "0".to_owned(), "above 0"));
        }
        let hub = Arc::new(Hub::new(world, deadline));
        Ok((0..world).map(|rank| Self { rank, world, link: Link::Threads(hub.clone()) }).collect())
    }

    /// This rank, below [`world`](Self::world).
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks in the group.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Checks that named values have the same bits on every rank.
    pub(crate) fn agree(&self, fields: &[(&'static str, f64)]) -> Result<()> {
        let Link::Threads(hub) = &self.link else { return Ok(()) };
        let mine: Vec<f64> = fields.iter().map(|&(_, v)| v).collect();
        let all = hub.exchange(self.rank, Posting { arena: Vec::new(), sums: mine })?;
        for (other, posting) in all.iter().enumerate() {
            for (&(field, mine), &theirs) in fields.iter().zip(&posting.sums) {
                if mine.to_bits() != theirs.to_bits() {
                    return Err(TrainerError::RankMismatch { rank: self.rank, field, mine, theirs, other });
                }
            }
        }
        Ok(())
    }

    /// Sums `arena` and `sums` over the ranks, in rank order. Nothing is written on an error.
    pub(crate) fn all_reduce(&self, arena: &mut [f32], sums: &mut [f64]) -> Result<()> {
        let Link::Threads(hub) = &self.link else { return Ok(()) };
        let all = hub.exchange(self.rank, Posting { arena: arena.to_vec(), sums: sums.to_vec() })?;
        for (rank, posting) in all.iter().enumerate() {
            match rank {
                0 => {
                    arena.copy_from_slice(&posting.arena);
                    sums.copy_from_slice(&posting.sums);
                }
                _ => {
                    arena.iter_mut().zip(&posting.arena).for_each(|(a, b)| *a += b);
                    sums.iter_mut().zip(&posting.sums).for_each(|(a, b)| *a += b);
                }
            }
        }
        Ok(())
    }
}

impl Drop for DistContext {
    fn drop(&mut self) {
        if let Link::Threads(hub) = &self.link {
            hub.leave(self.rank);
        }
    }
}

/// What one rank puts into an exchange.
#[derive(Debug)]
struct Posting {
    arena: Vec<f32>,
    sums: Vec<f64>,
}

type Postings = Arc<Vec<Posting>>;

/// Where the threads of a group meet.
#[derive(Debug)]
struct Hub {
    deadline: Duration,
    round: Mutex<Round>,
    turned: Condvar,
}

#[derive(Debug)]
struct Round {
    /// Finished exchanges.
    number: u64,
    /// What has arrived of the running exchange.
    slots: Vec<Option<Posting>>,
    /// The last finished exchange. It stays until every rank has posted again, hence has read it.
    finished: Postings,
    broken_by: Option<usize>,
}

impl Hub {
    fn new(world: usize, deadline: Duration) -> Self {
        let slots = (0..world).map(|_| None).collect();
        let round = Round { number: 0, slots, finished: Arc::default(), broken_by: None };
        Self { deadline, round: Mutex::new(round), turned: Condvar::new() }
    }

    /// No invariant spans an unlock, so a panic elsewhere leaves the round usable.
    fn lock(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts, waits for every rank, and returns all postings in rank order.
    fn exchange(&self, rank: usize, posting: Posting) -> Result<Postings> {
        let until = Instant::now() + self.deadline;
        let mut round = self.lock();
        let number = round.number;
        let world = round.slots.len();
        if let Some(broken_by) = round.broken_by {
            return Err(TrainerError::RankLost { rank, world, broken_by });
        }
        self.check_lengths(&mut round, rank, &posting)?;
        round.slots[rank] = Some(posting);
        if round.slots.iter().all(Option::is_some) {
            round.finished = Arc::new(round.slots.iter_mut().filter_map(Option::take).collect());
            round.number += 1;
            self.turned.notify_all();
            return Ok(round.finished.clone());
        }
        loop {
            if round.number != number {
                return Ok(round.finished.clone());
            }
            if let Some(broken_by) = round.broken_by {
                return Err(TrainerError::RankLost { rank, world, broken_by });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.give_up(&mut round, rank));
            }
            let woken = self.turned.wait_timeout(round, left);
            round = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn check_lengths(&self, round: &mut Round, rank: usize, posting: &Posting) -> Result<()> {
        let other = round.slots.iter().position(Option::is_some);
        let Some((other, theirs)) = other.and_then(|o| round.slots[o].as_ref().map(|p| (o, p))) else {
            return Ok(());
        };
        if theirs.arena.len() == posting.arena.len() && theirs.sums.len() == posting.sums.len() {
            return Ok(());
        }
        let (mine, theirs) = (posting.arena.len() as f64, theirs.arena.len() as f64);
        round.broken_by = Some(rank);
        self.turned.notify_all();
        Err(TrainerError::RankMismatch { rank, field: "arena length", mine, theirs, other })
    }

    fn give_up(&self, round: &mut Round, rank: usize) -> TrainerError {
        let missing: Vec<usize> = (0..round.slots.len()).filter(|&r| round.slots[r].is_none()).collect();
        round.broken_by = Some(missing.first().copied().unwrap_or(rank));
        self.turned.notify_all();
        TrainerError::RankTimeout { rank, world: round.slots.len(), waited: self.deadline, missing }
    }

    fn leave(&self, rank: usize) {
        let mut round = self.lock();
        if round.broken_by.is_none() {
            round.broken_by = Some(rank);
        }
        self.turned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_threads<T: Send>(groups: Vec<DistContext>, work: impl Fn(DistContext) -> T + Sync) -> Vec<T> {
        let work = &work;
        std::thread::scope(|s| {
            let threads: Vec<_> = groups.into_iter().map(|g| s.spawn(move || work(g))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn sums_run_in_rank_order_round_after_round() {
        // f32 addition is not associative: (2^24 + 1) + 1 is 2^24, 2^24 + (1 + 1) is 2^24 + 2.
        let values = [16_777_216.0f32, 1.0, 1.0];
        let groups = DistContext::threads(3, Duration::from_secs(30)).unwrap();
        let results = in_threads(groups, |group| {
            let mut last = Vec::new();
            for round in 0..50 {
                let mut arena = vec![values[group.rank()], round as f32];
                let mut sums = [group.rank() as f64];
                group.all_reduce(&mut arena, &mut sums).unwrap();
                assert_eq!((arena[0], arena[1], sums[0]), (16_777_216.0, 3.0 * round as f32, 3.0));
                last = arena;
            }
            last
        });
        assert!(results.iter().all(|r| *r == results[0]));
    }

    #[test]
    fn a_failed_exchange_writes_nothing_and_the_group_stays_broken() {
        let groups = DistContext::threads(2, Duration::from_millis(50)).unwrap();
        let (mut arena, mut sums) = (vec![1.5f32, f32::NAN], [2.5]);
        let error = groups[1].all_reduce(&mut arena, &mut sums).unwrap_err();
        let ok = matches!(&error, TrainerError::RankTimeout { rank: 1, missing, .. } if missing == &[0]);
        assert!(ok, "{error}");
        assert!(arena[0] == 1.5 && arena[1].is_nan() && sums == [2.5]);
        for group in &groups {
            let error = group.all_reduce(&mut arena, &mut sums).unwrap_err();
            assert!(matches!(error, TrainerError::RankLost { broken_by: 0, .. }), "{error}");
        }
    }

    #[test]
    fn arenas_of_different_lengths_are_refused() {
        let groups = DistContext::threads(2, Duration::from_secs(30)).unwrap();
        let results =
            in_threads(groups, |group| group.all_reduce(&mut vec![0.0; 3 + group.rank()], &mut []).is_err());
        assert_eq!(results, [true, true]);
    }

    #[test]
    fn a_rank_that_leaves_after_the_last_exchange_takes_nothing_back() {
        for _ in 0..50 {
            let groups = DistContext::threads(2, Duration::from_secs(30)).unwrap();
            let results = in_threads(groups, |group| {
                let mut arena = vec![1.0f32];
                group.all_reduce(&mut arena, &mut []).map(|()| arena[0])
            });
            assert!(results.into_iter().all(|r| r.unwrap() == 2.0));
        }
    }
}
