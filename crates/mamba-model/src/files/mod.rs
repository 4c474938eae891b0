//! Checkpoints: own safetensors layout, Hugging Face and state-spaces folders.
