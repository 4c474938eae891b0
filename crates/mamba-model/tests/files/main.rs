//! Checkpoint files: round trips, and files that are cut off, doctored or foreign. Those give an error that names
//! file and field; never a panic, an abort or a huge allocation.
#![allow(clippy::unwrap_used, clippy::panic)]

mod flips;
mod folders;
mod index;
mod native;
mod round_trips;
mod support;
mod torch;
