"""Training throughput of transformers' MambaForCausalLM on the CPU: the yardstick of docs/performance.md.

    pip install torch transformers mambapy
    python docs/perf/pytorch_cpu.py --threads 2

Same configurations as `mamba bench`: vocabulary 256, tied head, f32, forward + loss + backward + AdamW, random tokens.
Prints one line a configuration: median and best tokens/s, peak resident memory.
"""

import argparse
import resource
import statistics
import time

import torch
from transformers import MambaConfig, MambaForCausalLM


def run(d_model, layers, seq_len, batch, steps):
    torch.manual_seed(1)
    config = MambaConfig(
        vocab_size=256, hidden_size=d_model, num_hidden_layers=layers, state_size=16, conv_kernel=4, expand=2,
        use_mambapy=True, tie_word_embeddings=True, use_cache=False,
    )
    model = MambaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    seconds = []
    for step in range(steps + 1):
        ids = torch.randint(0, 256, (batch, seq_len))
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        if step > 0:
            seconds.append(time.perf_counter() - start)
    tokens = batch * seq_len
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"d {d_model} L {layers} T {seq_len} B {batch}: median {tokens / statistics.median(seconds):.0f} tokens/s, "
        f"best {tokens / min(seconds):.0f} tokens/s, peak {peak:.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--config", choices=["small", "medium"], default=None, help="one of the two (for its own peak memory)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.config in (None, "small"):
        run(128, 4, 256, 8, args.steps)
    if args.config in (None, "medium"):
        run(256, 6, 512, 4, args.steps)
