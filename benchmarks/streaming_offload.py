"""Weight streaming against PyTorch's own offload to the memory of the CPU, the same GPT on the same cores.

The contender is FSDP2 with `CPUOffloadPolicy`: each block is gathered before it computes, forward and
backward, and its gradients go back, where AdamW updates. Where there is no other device, the memory is the
same; what is compared is how much the way there and back costs.

    python -m benchmarks.streaming_offload [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Row
from benchmarks.streamed_step import STEPS, WARM_STEPS, Measured, measured

ROUNDS = 2
SIZES = {
    "model": {
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_heads": 8,
        "filter_size": 2048,
        "vocab_size": 2048,
        "max_position_embeddings": 128,
    },
    "train_input": {"batch_size": 4, "max_sequence_length": 128},
}


def rows(rounds: int = ROUNDS) -> list[Row]:
    """Time of a step, and its CPU time."""
    ours: list[Measured] = []
    theirs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="cs-bench-") as directory:
        folder = Path(directory)
        artifact = Path(str(_child("--compile", directory)))
        for _ in range(rounds):
            ours.append(measured(artifact, folder))
            theirs.append(_child("--torch"))
    found = []
    for name, title in (("step_s", "time"), ("cpu_s", "CPU time")):
        mine, other = [getattr(one, name) for one in ours], [one[name] for one in theirs]
        ratio = statistics.median(us / them for us, them in zip(mine, other, strict=True))
        found.append(
            Row(
                f"weight streaming against offload, GPT of 4 layers: {title} of a step",
                f"{1e3 * statistics.median(mine):,.0f} ms",
                f"PyTorch FSDP2 with CPUOffloadPolicy {1e3 * statistics.median(other):,.0f} ms",
                ratio,
                "≤ 1",
                ratio <= 1,
            )
        )
    return found


def _child(*flags: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.streaming_offload", *flags]
    # Threads that spin while they wait would cost both sides where others use the machine, too.
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def _compile_here(folder: Path) -> str:
    """The training step of the PyTorch program, compiled for weight streaming."""
    from benchmarks.torch_step_time import Case, traced_step
    from cgc.driver import compile_step
    from cgc.execution.compilation import CompileOptions
    from cs_toolkit.fabric import load_fabric

    module, _ = traced_step(Case("gpt2", "params_gpt2_tiny", SIZES).load())
    options = CompileOptions(execution="weight_streaming")
    return str(compile_step(module, folder, options, load_fabric("cs2")).artifact.path)


def _torch_here() -> dict[str, float]:
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    from benchmarks.torch_step_time import Case

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    workload = Case("gpt2", "params_gpt2_tiny", SIZES).load()
    options = {"mesh": init_device_mesh("cpu", (1,)), "offload_policy": CPUOffloadPolicy(pin_memory=False)}
    for block in workload.model.network.blocks:
        fully_shard(block, **options)
    fully_shard(workload.model, **options)
    optimizer = torch.optim.AdamW(workload.model.parameters(), lr=1e-3, weight_decay=0.01)
    seconds = []
    for number in range(WARM_STEPS + STEPS):
        began, cpu_began = time.monotonic(), time.process_time()
        loss = workload.model(workload.batches[number % len(workload.batches)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(workload.model.parameters(), 1.0)
        optimizer.step()
        seconds.append((time.monotonic() - began, time.process_time() - cpu_began))
    distributed.destroy_process_group()
    step, cpu = (statistics.median(times) for times in zip(*seconds[WARM_STEPS:], strict=True))
    return {"step_s": step, "cpu_s": cpu}


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--compile", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compile:
        print(json.dumps(_compile_here(args.compile)))
    elif args.torch:
        print(json.dumps(_torch_here()))
    else:
        for row in rows(args.rounds):
            print(f"{row.name}: {row.ours} | {row.others} | {row.ratio} (target {row.target})")


if __name__ == "__main__":
    main()
