//! Ranks of a group.

use super::target::{BATCH, SEQ_LEN};
use super::{Batch, Snapshot, Target, Tokens, assert_same, assert_same_but, snapshot};
use mamba_trainer::{
    BackwardMetrics, BackwardOpts, DistContext, LmTrainer, MambaTrainer, Result, StepOpts, TrainerError,
};
use std::time::{Duration, Instant};

const PATIENT: Duration = Duration::from_secs(60);

fn forward(t: &mut MambaTrainer, batch: &Batch) {
    t.forward(&batch.input, &mut Batch::temporal()).unwrap();
}

pub fn a_group_of_one_equals_no_group(target: &Target) {
    let group = DistContext::single();
    let alone = &DistContext::threads(1, PATIENT).unwrap()[0];
    let (mut a, mut b, mut c) = (target.backbone(), target.backbone(), target.backbone());
    for i in 0..4 {
        let batch = Batch::new(i);
        let opts = match i {
            0 => BackwardOpts::new().with_clip_max_norm(0.5),
            1 => BackwardOpts::new().with_accumulate_only(true),
            _ => BackwardOpts::new().with_step_skip_above(1e5),
        };
        for t in [&mut a, &mut b, &mut c] {
            forward(t, &batch);
        }
        let x = a.backward_step(&batch.d_temporal, opts).unwrap();
        assert_eq!(x, b.backward_step_dist(&batch.d_temporal, opts, &group).unwrap());
        assert_eq!(x, c.backward_step_dist(&batch.d_temporal, opts, alone).unwrap());
        let want = snapshot(&mut a);
        assert_same(&want, &snapshot(&mut b), "single");
        assert_same(&want, &snapshot(&mut c), "group of one");
    }
}

/// Runs `work` on every rank in a thread of its own and returns what they return, in rank order.
fn on_ranks<T: Send>(world: usize, deadline: Duration, work: impl Fn(DistContext) -> T + Sync) -> Vec<T> {
    let groups = DistContext::threads(world, deadline).unwrap();
    let work = &work;
    std::thread::scope(|s| {
        let threads: Vec<_> = groups.into_iter().map(|g| s.spawn(move || work(g))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Batch of a rank: every rank has its own data.
fn batch_of(step: u64, rank: usize) -> Batch {
    Batch::new(100 * step + rank as u64)
}

pub fn ranks_take_the_same_step(target: &Target) {
    for world in [2, 3] {
        let results: Vec<(Vec<BackwardMetrics>, Snapshot)> = on_ranks(world, PATIENT, |group| {
            let mut t = target.backbone();
            let metrics = (0..3).map(|i| {
                let clip = BackwardOpts::new().with_clip_max_norm(0.5);
                if i == 1 {
                    // Micro-batches stay local.
                    let batch = batch_of(10, group.rank());
                    forward(&mut t, &batch);
                    let accumulate = BackwardOpts::new().with_accumulate_only(true);
                    t.backward_step_dist(&batch.d_temporal, accumulate, &group).unwrap();
                }
                let batch = batch_of(i, group.rank());
                forward(&mut t, &batch);
                t.backward_step_dist(&batch.d_temporal, clip, &group).unwrap()
            });
            (metrics.collect(), snapshot(&mut t))
        });
        let (metrics, first) = &results[0];
        for (m, s) in &results {
            assert_eq!(m, metrics);
            assert_same_but(first, s, &["conv", "ssm"], "ranks agree");
        }
        // The sum by hand, in rank order, over the mean: the same norm.
        let mut sum: Vec<f32> = Vec::new();
        let mut t = target.backbone();
        for rank in 0..world {
            let batch = batch_of(0, rank);
            t.reset_state().unwrap();
            forward(&mut t, &batch);
            t.backward_step(&batch.d_temporal, BackwardOpts::new().with_accumulate_only(true)).unwrap();
            let own = t.grad_arena().unwrap().into_owned();
            match rank {
                0 => sum = own,
                _ => sum.iter_mut().zip(&own).for_each(|(a, b)| *a += b),
            }
            if rank + 1 < world {
                t.discard_window().unwrap();
            }
        }
        t.upload_grad_arena(&sum).unwrap();
        let by_hand = t.apply_step(None).unwrap().grad_norm.unwrap() / world as f64;
        let reported = metrics[0].grad_norm.unwrap();
        // 1/world is rounded to f32 before the norm, here after it; measured 3.4e-8.
        assert!((by_hand / reported - 1.0).abs() < 2e-7, "{by_hand} {reported}");
    }
}

pub fn the_mean_counts_tokens_of_all_ranks(target: &Target) {
    let counts = [1, BATCH * SEQ_LEN, 0];
    let tokens = |rank: usize| Tokens::new(rank as u64).counting(counts[rank]);
    let results = on_ranks(3, PATIENT, |group| {
        let mut t: LmTrainer = target.lm(true);
        let batch = tokens(group.rank());
        let metrics = t.backward_step_dist(&batch.batch(), BackwardOpts::new(), &group).unwrap();
        (metrics.grad_norm.unwrap(), t.last_metrics().unwrap().unwrap().loss)
    });
    let mut one: LmTrainer = target.lm(true);
    for rank in 0..3 {
        one.reset_state().unwrap();
        one.accumulate(&tokens(rank).batch()).unwrap();
    }
    one.apply_window().unwrap();
    let want = one.last_metrics().unwrap().unwrap();
    for (norm, loss) in results {
        // The sum in rank order against the sum inside one arena; measured 9.1e-9 and 0 in f32.
        assert!((norm / want.grad_norm.unwrap() - 1.0).abs() < 2e-7, "{norm} {want:?}");
        assert!((loss / want.loss - 1.0).abs() < 1e-12, "{loss} {want:?}");
    }
}

pub fn a_spike_on_one_rank_skips_on_all(target: &Target) {
    for value in [f32::NAN, 1e6] {
        let results = on_ranks(2, PATIENT, |group| {
            let mut t = target.backbone();
            let batch = match group.rank() {
                1 => Batch::poisoned(1, value),
                _ => Batch::new(0),
            };
            let before = snapshot(&mut t);
            forward(&mut t, &batch);
            let opts = BackwardOpts::new().with_step_skip_above(1e4);
            let metrics = t.backward_step_dist(&batch.d_temporal, opts, &group).unwrap();
            let moved = ["conv", "ssm", "grads", "outcome", "skips", "scaler"];
            assert_same_but(&before, &snapshot(&mut t), &moved, "skipped");
            metrics
        });
        assert!(results.iter().all(|m| !m.optimizer_stepped && m.step == 0), "{value}: {results:?}");
    }
}

pub fn a_missing_rank_is_an_error_in_time(target: &Target) {
    // One rank never comes: its end is held, so that only the deadline tells.
    let mut groups = DistContext::threads(2, Duration::from_millis(200)).unwrap();
    let stuck = groups.pop().unwrap();
    let mut t = target.backbone();
    let batch = Batch::new(1);
    forward(&mut t, &batch);
    let begin = Instant::now();
    let error = t.backward_step_dist(&batch.d_temporal, BackwardOpts::new(), &groups[0]).unwrap_err();
    let ok =
        matches!(&error, TrainerError::RankTimeout { rank: 0, world: 2, missing, .. } if missing == &[1]);
    assert!(ok, "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    // The local gradient waits in the open window, for a new group or none.
    assert_eq!(t.window(), Some(1));
    let late = stuck_rank_finds_the_group_broken(target, &stuck);
    assert!(matches!(late, TrainerError::RankLost { rank: 1, world: 2, .. }), "{late}");
    let mut alone = target.backbone();
    forward(&mut alone, &batch);
    alone.backward_step(&batch.d_temporal, BackwardOpts::new()).unwrap();
    t.apply_step_dist(&StepOpts::new(), &DistContext::single()).unwrap();
    assert_same(&snapshot(&mut alone), &snapshot(&mut t), "applied alone");

    // One rank dies: the others need no deadline to know.
    let results = on_ranks(3, PATIENT, |group| {
        if group.rank() == 1 {
            return None;
        }
        let mut t = target.backbone();
        forward(&mut t, &batch);
        Some(t.backward_step_dist(&batch.d_temporal, BackwardOpts::new(), &group).unwrap_err())
    });
    for error in results.into_iter().flatten() {
        assert!(matches!(error, TrainerError::RankLost { world: 3, .. }), "{error}");
    }
}

fn stuck_rank_finds_the_group_broken(target: &Target, group: &DistContext) -> TrainerError {
    let mut t = target.backbone();
    let batch = Batch::new(1);
    forward(&mut t, &batch);
    t.backward_step_dist(&batch.d_temporal, BackwardOpts::new(), group).unwrap_err()
}

pub fn ranks_that_disagree_are_told(target: &Target) {
    let attempt = |group: &DistContext, lr: f64, clip: f64| -> Result<()> {
        let mut t = target.backbone();
        t.set_lr(lr).unwrap();
        forward(&mut t, &Batch::new(1));
        let opts = BackwardOpts::new().with_clip_max_norm(clip);
        t.backward_step_dist(&Batch::new(1).d_temporal, opts, group).map(|_| ())
    };
    let results = on_ranks(2, PATIENT, |group| {
        let rank = group.rank();
        let lr = attempt(&group, 1e-3 * (1 + rank) as f64, 1.0);
        let clip = attempt(&group, 1e-3, 1.0 + rank as f64);
        (lr, clip, attempt(&group, 1e-3, 1.0))
    });
    for (lr, clip, fine) in results {
        assert!(matches!(lr, Err(TrainerError::RankMismatch { field: "lr", .. })), "{lr:?}");
        assert!(matches!(clip, Err(TrainerError::RankMismatch { field: "clip_max_norm", .. })), "{clip:?}");
        fine.unwrap();
    }
    for (world, deadline) in [(0, PATIENT), (2, Duration::ZERO)] {
        assert!(matches!(DistContext::threads(world, deadline), Err(TrainerError::Setting { .. })));
    }
}
