//! Device, streams, graphs, device and pinned buffers for training on NVIDIA GPUs.
//!
//! The driver is looked for at run time: a program that links this crate runs on machines without a GPU, where
//! [`devices`] and [`Gpu::open`] say so with a typed error.
//!
//! Code map: [`Gpu`] opens a device; [`DeviceBuf`], [`View`], [`ViewMut`] are its memory; [`PinnedUpload`],
//! [`PinnedReadback`], [`Staging`] move data to and from the host; [`Module`], [`Function`], [`launch()`] run kernels;
//! [`Capture`], [`Graph`] record a step and replay it; [`Event`], [`median_time`] take the time; [`BlasLt`] multiplies
//! with NVIDIA's library where that is installed.
//!
//! Rules: nothing here panics because of a device; a destructor's error is kept and returned by the next call; all
//! sizes are in elements unless they are called bytes.

// Every function of the driver is unsafe to call; each block says why it is sound.
#![allow(unsafe_code)]

mod blaslt;
mod buf;
mod driver;
mod error;
mod gpu;
mod graph;
mod launch;
mod module;
mod pinned;
mod staging;
mod stream;
mod tensor_map;

pub use blaslt::{BlasElement, BlasLt, BlasMath, Operand, Product};
pub use buf::{DeviceBuf, View, ViewMut};
pub use error::{CudaError, Result};
pub use gpu::{DeviceInfo, Gpu, devices};
pub use graph::{Capture, Graph};
pub use launch::{Dims, Params, launch};
pub use module::{Function, Module};
pub use pinned::{PinnedReadback, PinnedUpload};
pub use staging::Staging;
pub use stream::{Event, Stream, median_time};
pub use tensor_map::{MapElement, MatrixMap, TensorMap};

/// The README, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
