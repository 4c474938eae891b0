//! Outcomes on their way from the device: two pinned slots, so that nobody waits for the window at hand.

use crate::error::Result;
use crate::metrics::{Verdict, WindowOutcome};
use mamba_cuda::{Event, Gpu, PinnedReadback, View};
use mamba_kernels::loss::LossTotals;
use mamba_optim::OptimError;
use mamba_optim::cuda::{TailOutcome, TailState};

pub(super) struct Readback {
    slots: [Slot; 2],
    /// Slot of the next window.
    next: usize,
    /// Slots that hold an unread outcome, oldest first.
    unread: Vec<usize>,
    /// The newest state that the host has seen.
    seen: TailState,
    last: Option<WindowOutcome>,
    gpu: Gpu,
}

struct Slot {
    state: PinnedReadback<TailState>,
    totals: PinnedReadback<LossTotals>,
    has_loss: bool,
    done: Event,
}

impl Readback {
    pub fn new(gpu: &Gpu, state: TailState) -> Result<Self> {
        let slot = || -> Result<Slot> {
            Ok(Slot {
                state: PinnedReadback::new(gpu, 1)?,
                totals: PinnedReadback::new(gpu, 1)?,
                has_loss: false,
                done: Event::new(gpu.compute())?,
            })
        };
        let slots = [slot()?, slot()?];
        Ok(Self { slots, next: 0, unread: Vec::new(), seen: state, last: None, gpu: gpu.clone() })
    }

    /// Enqueues the copy of a closed window's outcome; `totals`: its loss, where it has one. Waits for the window before
    /// the last one.
    pub fn publish(
        &mut self,
        state: View<'_, TailState>,
        totals: Option<View<'_, LossTotals>>,
    ) -> Result<()> {
        if self.unread.contains(&self.next) {
            self.read_until(self.next)?;
        }
        let slot = &mut self.slots[self.next];
        slot.has_loss = totals.is_some();
        slot.state.download(state, self.gpu.compute())?;
        if let Some(totals) = totals {
            slot.totals.download(totals, self.gpu.compute())?;
        }
        slot.done.record(self.gpu.compute())?;
        self.unread.push(self.next);
        self.next = 1 - self.next;
        Ok(())
    }

    /// Reads what is done, and of two windows in flight waits for the older.
    pub fn poll(&mut self) -> Result<()> {
        if let [older, _] = self.unread[..] {
            self.read_until(older)?;
        }
        match self.unread.first() {
            Some(&slot) if self.slots[slot].done.is_done()? => self.read_until(slot),
            _ => Ok(()),
        }
    }

    /// Waits for every outcome.
    pub fn settle(&mut self) -> Result<()> {
        match self.unread.last() {
            Some(&newest) => self.read_until(newest),
            None => Ok(()),
        }
    }

    fn read_until(&mut self, newest: usize) -> Result<()> {
        while let Some(&index) = self.unread.first() {
            let slot = &self.slots[index];
            slot.done.synchronize()?;
            self.unread.remove(0);
            let (Some(state), totals) = (slot.state.get(0), slot.totals.get(0).filter(|_| slot.has_loss))
            else {
                continue;
            };
            self.seen = state;
            match outcome(&state, totals) {
                Ok(outcome) => self.last = Some(outcome),
                Err(floor) => return Err(floor.into()),
            }
            if index == newest {
                break;
            }
        }
        Ok(())
    }

    /// The newest state that the host has seen.
    pub fn seen(&self) -> &TailState {
        &self.seen
    }

    /// The newest outcome that the host has seen.
    pub fn last(&self) -> Option<WindowOutcome> {
        self.last
    }

    /// The host wrote the device's state.
    pub fn replaced(&mut self, state: TailState) {
        self.seen = state;
    }

    /// Forgets the last outcome.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

fn outcome(state: &TailState, totals: Option<LossTotals>) -> std::result::Result<WindowOutcome, OptimError> {
    let verdict = match state.outcome() {
        TailOutcome::Applied | TailOutcome::None => Verdict::Applied,
        TailOutcome::Spike => Verdict::SpikeSkipped,
        TailOutcome::Outlier => Verdict::OutlierSkipped,
        TailOutcome::NonFinite => Verdict::NonFiniteSkipped,
        TailOutcome::Overflow => Verdict::OverflowSkipped,
        TailOutcome::OverflowAtFloor => {
            return Err(OptimError::ScaleAtFloor { scale: state.scale, floor: state.scale });
        }
    };
    Ok(WindowOutcome {
        window: state.windows,
        verdict,
        step: state.step,
        grad_norm: (verdict != Verdict::OverflowSkipped).then_some(state.grad_norm),
        loss_scale: state.used_scale,
        loss: totals.map(Into::into),
    })
}
