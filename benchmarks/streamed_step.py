"""Steps of a compiled GPT in a process that holds only the wafer's part, as the CS system does.

python -m benchmarks.streamed_step ARTIFACT DIRECTORY [--num-csx N] [--travelling] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_loop import aligned

WARM_STEPS, STEPS = 2, 5


@dataclass(frozen=True)
class Measured:
    """One process that runs steps.

    Attributes:
        step_s: seconds of a step, median.
        cpu_s: CPU seconds of a step, of all processes: MemoryX, and the wafers of a group.
        program_s: CPU seconds of XLA before the first step.
        peak_bytes: largest resident memory of the wafer's process, XLA's work in it included.
        transfer_s: seconds in which the weights of a step travelled; 0 where they do not.
        waited_s: of these the seconds in which the wafer had nothing to compute.
    """

    step_s: float
    cpu_s: float
    program_s: float
    peak_bytes: int
    transfer_s: float
    waited_s: float


def measured(artifact: Path, folder: Path, *flags: str) -> Measured:
    """Measure in a separate process; `flags` are those of the module."""
    command = [sys.executable, "-m", "benchmarks.streamed_step", str(artifact), str(folder), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print the measurement as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("directory", type=Path, help="where MemoryX keeps state")
    parser.add_argument("--num-csx", type=int, default=1)
    parser.add_argument("--travelling", action="store_true", help="weights travel as between machines")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    print(json.dumps(asdict(_measure_here(args))))


def _measure_here(args: argparse.Namespace) -> Measured:
    from cs_system.engine.device import start_device
    from cs_system.engine.machine import limit_threads

    limit_threads(None)
    start_device(None)
    engine, step = _engine(args.artifact, args.directory, args.num_csx, not args.travelling)
    began = time.process_time()
    engine.program()
    program_s = time.process_time() - began
    random = np.random.default_rng(1)
    for spec in step.state:
        engine.put_state({spec.name: _values(spec, random)})
    chunk = tuple(aligned(_tokens(spec, random, engine.chunk_batches)) for spec in step.inputs)
    for _ in range(WARM_STEPS):
        engine.dispatch(chunk, 0, 1).wait()
    before, cpu_before = _transfer(engine), _cpu_s()
    seconds = []
    for _ in range(args.steps):
        began = time.monotonic()
        engine.dispatch(chunk, 0, 1).wait()
        seconds.append(time.monotonic() - began)
    after, cpu_after = _transfer(engine), _cpu_s()
    peak = _peak_bytes()
    engine.free()
    moved, waited = ((now - then) / args.steps for now, then in zip(after, before, strict=True))
    cpu_s = (cpu_after - cpu_before) / args.steps
    return Measured(statistics.median(seconds), cpu_s, program_s, peak, moved, waited)


def _engine(path: Path, folder: Path, num_csx: int, maps_files: bool) -> tuple[Any, Any]:
    """The engine of an artifact, read without the compiler."""
    from cgc.artifact import open_artifact
    from cs_system.memoryx.config import MemoryxConfig
    from cs_system.memoryx.engine import StreamedEngine
    from cs_system.swarmx.group import GroupEngine
    from cs_toolkit.layered_step import schedule_from_json

    artifact = open_artifact(path)
    step = artifact.step
    data = {executable.name: artifact.executable_bytes(executable.name) for executable in step.executables}
    place = MemoryxConfig(directory=folder, maps_files=maps_files)
    schedule = schedule_from_json(step.schedule)
    if num_csx == 1:
        return StreamedEngine(step, schedule, data, place), step.interface
    return GroupEngine(step, schedule, data, place, num_csx), step.interface


def _transfer(engine: Any) -> tuple[float, float]:
    """Seconds of transfer so far, and those of them in which the wafer waited."""
    if not hasattr(engine, "transfers"):
        return 0.0, 0.0
    found = engine.transfers()
    return sum(one.seconds for one in found), sum(one.waited_s for one in found)


def _values(spec: Any, random: np.random.Generator) -> np.ndarray:
    if spec.dtype != "float32" or not spec.shape or "optimizer" in spec.name:
        return np.zeros(spec.shape, spec.dtype)
    return (0.02 * random.standard_normal(spec.shape, np.float32)).astype(spec.dtype)


def _tokens(spec: Any, random: np.random.Generator, batches: int) -> np.ndarray:
    shape = (batches, *spec.shape)
    if np.issubdtype(np.dtype(spec.dtype), np.floating):
        return np.ones(shape, spec.dtype)
    return random.integers(0, 2048, shape).astype(np.int32)


def _cpu_s() -> float:
    """Return the peak memory of this process and its children so far."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + sum(map(_cpu_of, _children(os.getpid())))


def _children(pid: int) -> Iterable[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def _cpu_of(pid: int) -> float:
    """Nanoseconds on a CPU of all its threads, which the kernel counts exactly, as seconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _peak_bytes() -> int:
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main()
