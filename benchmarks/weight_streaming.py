"""Weight streaming against the pipelined execution: memory of the wafer's process, step time, compile time.

GPTs of one width and growing depth. Each measurement is a process of its own that holds the wafer's part
alone, as the CS system does; MemoryX is another process. The peak is the process's largest resident memory
(VmHWM) after some steps, its compilation included.

    python -m benchmarks.weight_streaming [--layers 4 8 16 32] [--width 512] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row, interleave

LAYERS, WIDTH, ROUNDS = (4, 8, 16, 32), 512, 3
WARM_STEPS, STEPS = 2, 5
WORST_STEP_TIME, WORST_COMPILE_TIME = 1.1, 1.3
LEAST_UPDATE_RATE = 0.7
UPDATED = 4, 768
"""Layers and width of the GPT whose update is measured: 31 million parameters."""

EXECUTIONS = ("pipelined", "weight_streaming")


@dataclass(frozen=True)
class Measured:
    """One process: seconds of a step (median), and peak bytes of memory of the wafer's process."""

    step_s: float
    peak_bytes: int


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the figures of every depth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--step", nargs=2, metavar=("ARTIFACT", "MEMORYX_DIR"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.step:
        print(json.dumps(_measure_here(Path(args.step[0]), Path(args.step[1]))))
        return
    for row in rows(args.layers, args.width, args.rounds):
        print(f"{row.name}: {row.ours} | {row.others} | {row.ratio} (target {row.target})")


def rows(layers: Sequence[int] = LAYERS, width: int = WIDTH, rounds: int = ROUNDS) -> list[Row]:
    """Memory, step time and compile time by depth."""
    with tempfile.TemporaryDirectory(prefix="cs-bench-") as folder:
        compile_s: dict[int, float] = {}
        artifacts: dict[tuple[int, str], Path] = {}
        for depth in layers:
            for execution in EXECUTIONS:
                artifact, seconds = _compiled(depth, width, execution, Path(folder))
                artifacts[depth, execution] = artifact
                if execution == "weight_streaming":
                    compile_s[depth] = seconds
        found = {}
        for depth in layers:
            measured: dict[str, list[Measured]] = {name: [] for name in EXECUTIONS}

            def contender(name: str, depth: int = depth, into: Any = measured) -> float:
                into[name].append(_measured(artifacts[depth, name], Path(folder)))
                return float(into[name][-1].step_s)

            times = interleave({name: lambda n=name: contender(n) for name in EXECUTIONS}, rounds)
            found[depth] = (times, measured)
    return [
        row for depth, (times, measured) in found.items() for row in _depth_rows(depth, times, measured)
    ] + [_compile_row(compile_s), update_row()]


def update_row() -> Row:
    """The update of AdamW at MemoryX, see `benchmarks.update_rate`."""
    with tempfile.TemporaryDirectory(prefix="cs-bench-") as folder:
        unclipped = {"max_gradient_norm": None}
        artifact, _ = _compiled(*UPDATED, "weight_streaming", Path(folder), unclipped)
        command = [sys.executable, "-m", "benchmarks.update_rate", str(artifact), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    rate = json.loads(done.stdout.splitlines()[-1])
    return Row(
        "update rate of AdamW at MemoryX against memory bandwidth",
        f"{rate['update'] / 1e9:.1f} GB/s",
        f"STREAM triad {rate['triad'] / 1e9:.1f} GB/s",
        rate["ratio"],
        f"≥ {LEAST_UPDATE_RATE}",
        rate["ratio"] >= LEAST_UPDATE_RATE,
    )


def _depth_rows(depth: int, times: dict[str, list[float]], measured: dict[str, list[Measured]]) -> list[Row]:
    step = statistics.median(
        ours / other for ours, other in zip(times["weight_streaming"], times["pipelined"], strict=True)
    )
    peaks = {name: statistics.median(m.peak_bytes for m in of) for name, of in measured.items()}
    seconds = {name: statistics.median(of) for name, of in times.items()}
    name = f"weight streaming, GPT of {depth} layers"
    return [
        Row(
            f"{name}: time of a step",
            f"{1e3 * seconds['weight_streaming']:,.0f} ms",
            f"pipelined {1e3 * seconds['pipelined']:,.0f} ms",
            step,
            f"≤ {WORST_STEP_TIME}",
            step <= WORST_STEP_TIME,
        ),
        Row(
            f"{name}: peak memory of the wafer's process",
            f"{peaks['weight_streaming'] / 1e6:,.0f} MB",
            f"pipelined {peaks['pipelined'] / 1e6:,.0f} MB",
            peaks["weight_streaming"] / peaks["pipelined"],
            "≤ 1",
            peaks["weight_streaming"] <= peaks["pipelined"],
        ),
    ]


def _compile_row(seconds: dict[int, float]) -> Row:
    shallow, deep = min(seconds), max(seconds)
    ratio = seconds[deep] / seconds[shallow]
    return Row(
        f"weight streaming: compiling a GPT of {deep} layers",
        f"{seconds[deep]:.1f} s",
        f"{shallow} layers {seconds[shallow]:.1f} s",
        ratio,
        f"≤ {WORST_COMPILE_TIME}",
        ratio <= WORST_COMPILE_TIME,
    )


def _compiled(
    depth: int, width: int, execution: Any, folder: Path, optimizer: Mapping[str, Any] | None = None
) -> tuple[Path, float]:
    """The artifact of a GPT, and the seconds that the compiler took for it, tracing apart."""
    from benchmarks.example_step import example_step
    from cgc.driver import CompileOptions, compile_step
    from cs_toolkit.fabric import load_fabric

    changes = {
        "model": {
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_heads": 8,
            "filter_size": 4 * width,
            "vocab_size": 2048,
            "max_position_embeddings": 128,
        },
        "train_input": {"batch_size": 4, "max_sequence_length": 128, "num_examples": 64},
        "optimizer": optimizer or {},
    }
    module = example_step("gpt2", "params_gpt2_tiny.yaml", changes)
    began = time.monotonic()
    result = compile_step(module, folder, CompileOptions(execution=execution), load_fabric("cs2"))
    return result.artifact.path, time.monotonic() - began


def _measured(artifact: Path, folder: Path) -> Measured:
    command = [sys.executable, "-m", "benchmarks.weight_streaming", "--step", str(artifact), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def _measure_here(path: Path, folder: Path) -> dict[str, float]:
    """Runs a compiled step in this process, which has nothing but the engine in it."""
    from benchmarks.engine_loop import aligned
    from cs_system.engine import setup

    setup.limit_threads(None)
    setup.start_device(None)
    engine, step = _engine(path, folder)
    engine.program()
    random = np.random.default_rng(1)
    for spec in step.state:
        engine.put_state({spec.name: _values(spec, random)})
    chunk = tuple(aligned(_tokens(spec, random, engine.chunk_batches)) for spec in step.inputs)
    seconds = []
    for number in range(WARM_STEPS + STEPS):
        began = time.monotonic()
        engine.dispatch(chunk, 0, 1).wait()
        if number >= WARM_STEPS:
            seconds.append(time.monotonic() - began)
    peak = _peak_bytes()
    engine.free()
    return {"step_s": statistics.median(seconds), "peak_bytes": peak}


def _engine(path: Path, folder: Path) -> tuple[Any, Any]:
    """The engine of an artifact, read without the compiler."""
    from cgc.artifact import open_artifact
    from cs_system.engine.base import make_engine
    from cs_system.memoryx.place import MemoryxPlace

    artifact = open_artifact(path)
    step = artifact.step
    data = {executable.name: artifact.executable_bytes(executable.name) for executable in step.executables}
    return make_engine(step, data, 1, MemoryxPlace(directory=folder)), step.interface


def _values(spec: Any, random: np.random.Generator) -> np.ndarray:
    if spec.dtype != "float32" or not spec.shape or "optimizer" in spec.name:
        return np.zeros(spec.shape, spec.dtype)
    return (0.02 * random.standard_normal(spec.shape, np.float32)).astype(spec.dtype)


def _tokens(spec: Any, random: np.random.Generator, batches: int) -> np.ndarray:
    shape = (batches, *spec.shape)
    if np.issubdtype(np.dtype(spec.dtype), np.floating):
        return np.ones(shape, spec.dtype)
    return random.integers(0, 2048, shape).astype(np.int32)


def _peak_bytes() -> int:
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main()
