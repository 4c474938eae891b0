//! Device, streams, graphs, device and pinned buffers for training on NVIDIA GPUs.
