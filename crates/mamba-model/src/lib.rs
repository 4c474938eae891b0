//! Mamba models: configuration, weights, files, forward and backward.
