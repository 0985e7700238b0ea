"""Training jobs of csrun_wse against the engine fed from memory, and what each process of a job computes.

    python -m benchmarks.training_jobs [MODEL ...] [--workers N ...] [--steps N] [--rounds N]

The engine computes with one thread, on a core that no other process of the job uses. The contender is the
artifact of the job in an engine on the same core, with batches in memory. The system's own process, the chief
and the workers share the other cores, so that the engine waits for its input if these are too few. Time in
which another program has the core of the engine does not count.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.engine_loop import stepping
from benchmarks.harness import Row, interleave, ratio_to_best, table
from cgc.artifact import open_artifact
from cs_stream.batches import BatchLayout, RingMemory
from cs_system.client import SystemClient, parse_address
from cs_system.engine.base import ring_size
from cs_toolkit.security.certificates import Authority, create_authority
from cs_toolkit.security.identity import CERTS_VARIABLE, Identity
from tests.systems import RunningSystem, descendants_of, running_system

ROOT = Path(__file__).resolve().parent.parent
PARAMS = {"fc_mnist": "params_fc_mnist", "bert": "params_bert_tiny"}
WORKERS = (1, 2, 4)
STEPS = 3000
ROUNDS = 3
MIN_RATIO = 0.95
TLS_WORKERS = 2
_POLL_S = 0.25
_ANSWER_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measured:
    """Steps of a job, or of the engine by itself.

    Attributes:
        steps_per_s: Their rate, without the time in which other programs had the core.
        cpu_s: CPU seconds a step, by kind of process.
        input_wait: Fraction of the time in which the engine waited for a batch.
    """

    steps_per_s: float
    cpu_s: Mapping[str, float]
    input_wait: float = 0.0


@dataclass(frozen=True)
class Sample:
    """A look at a running job.

    Attributes:
        time_s: Monotonic time.
        step: Number of completed steps.
        threads: The threads of the engine, as from `_read_threads`.
        cpu_s: CPU seconds, by kind of process.
        input_wait: Fraction of the last seconds in which the engine waited for a batch.
    """

    time_s: float
    step: int
    threads: Mapping[str, tuple[int, int]]
    cpu_s: Mapping[str, float]
    input_wait: float


def rows(
    models: Sequence[str] = tuple(PARAMS),
    workers: Sequence[int] = WORKERS,
    steps: int = STEPS,
    rounds: int = ROUNDS,
) -> list[Row]:
    """A row for each example program and number of workers, and one for each program with TLS."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with running_system(_subfolder(folder, "system"), ["--threads=1"]) as system:
            for model in models:
                artifact = _compile(system, model, folder)
                for count in workers:
                    contenders = {
                        "job": partial(_run_job, system, model, count, steps),
                        "engine": partial(_run_engine, artifact, steps),
                    }
                    found.append(_row(f"{model} job, {count} worker(s)", contenders, rounds))
        found += _tls_rows(folder, models, steps, rounds)
    return found


def _tls_rows(folder: Path, models: Sequence[str], steps: int, rounds: int) -> list[Row]:
    """Compare jobs of a system with TLS and one without; the batches of both go through sockets."""
    create_authority(folder, "bench")
    authority = Authority(folder)
    authority.issue(folder / "certificates", Identity("bench", "system"), ["127.0.0.1"])
    authority.issue(folder / "user", Identity("bench", "user"))
    flags = ["--threads=1", "--no-shm"]
    with (
        running_system(_subfolder(folder, "plain"), flags) as plain,
        running_system(
            _subfolder(folder, "tls"), [*flags, f"--certs={folder / 'certificates'}"]
        ) as encrypted,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv(CERTS_VARIABLE, str(folder / "user"))  # used only with a system that has TLS
        return [
            _row(
                f"{model} job, {TLS_WORKERS} workers, TLS",
                {
                    "TLS": partial(_run_job, encrypted, model, TLS_WORKERS, steps),
                    "plain": partial(_run_job, plain, model, TLS_WORKERS, steps),
                },
                rounds,
            )
            for model in models
        ]


def _row(name: str, contenders: Mapping[str, Callable[[], Measured]], rounds: int) -> Row:
    """Compare the rate of the first contender with that of the second."""
    measured: dict[str, list[Measured]] = {key: [] for key in contenders}

    def rate(key: str) -> float:
        measured[key].append(contenders[key]())
        return measured[key][-1].steps_per_s

    ours, _ = contenders
    ratio = ratio_to_best(interleave({key: partial(rate, key) for key in contenders}, rounds), ours)
    first, second = (f"{key} {_describe(each)}" for key, each in measured.items())
    return Row(name, first, second, ratio, f"≥ {MIN_RATIO}", ratio >= MIN_RATIO)


def _describe(measured: Sequence[Measured]) -> str:
    rate = statistics.median(each.steps_per_s for each in measured)
    wait = statistics.median(each.input_wait for each in measured)
    parts = ", ".join(
        f"{name} {1e3 * statistics.median(each.cpu_s[name] for each in measured):.2f}"
        for name in measured[0].cpu_s
    )
    return f"{rate:,.0f} steps/s, input wait {wait:.0%}, CPU ms/step: {parts}"


def _run_job(system: RunningSystem, model: str, workers: int, steps: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        command = _command(system, model, Path(folder), steps, workers)
        job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        samples = list(_watch(system, job, steps))
        if job.returncode or len(samples) < 2:
            raise RuntimeError(f"the job ended with exit code {job.returncode} after {len(samples)} samples")
    first, last = samples[0], samples[-1]
    done = last.step - first.step
    seconds = last.time_s - first.time_s - _displaced_s(first.threads, last.threads)
    return Measured(
        done / seconds,
        {kind: (last.cpu_s[kind] - first.cpu_s[kind]) / done for kind in last.cpu_s},
        statistics.mean(sample.input_wait for sample in samples[1:]),
    )


def _watch(system: RunningSystem, job: subprocess.Popen[bytes], steps: int) -> Iterator[Sample]:
    """Look at a job while its steps run, from time to time."""
    kinds: dict[int, str] = {}
    with SystemClient(parse_address(system.address), timeout_s=_ANSWER_S) as client:
        while job.poll() is None:
            run = client.info().run
            # After the first steps, in which files are read and the queues of batches are filled.
            if run is not None and steps // 10 <= run.step < steps:
                if not kinds:
                    kinds = _find_processes(system.process.pid, job.pid)
                    _separate_engine(kinds)
                (engine,) = (pid for pid, kind in kinds.items() if kind == "engine")
                with suppress(FileNotFoundError):  # the job has ended
                    yield Sample(
                        time.monotonic(), run.step, _read_threads(engine), _cpu_seconds(kinds), run.input_wait
                    )
            time.sleep(_POLL_S)


def _read_threads(pid: int) -> dict[str, tuple[int, int]]:
    """Return for each thread how long it has run, and how long it has waited for a core, in ns."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            running, waiting, _ = (thread / "schedstat").read_text().split()
            found[thread.name] = int(running), int(waiting)
    return found


def _displaced_s(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> float:
    """Return for how long the thread that computes has waited for a core that other programs had."""
    _, waited_ns = max(
        (after[thread][0] - before[thread][0], after[thread][1] - before[thread][1])
        for thread in before.keys() & after.keys()
    )
    return waited_ns / 1e9


def _find_processes(system: int, launcher: int) -> dict[int, str]:
    """Return the kind of each process of a job and of the system."""
    kinds = {system: "system"}
    for pid in descendants_of(system):
        if Path(f"/proc/{pid}/comm").read_text().strip() == "cs_engine":
            kinds[pid] = "engine"
    for pid in descendants_of(launcher):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if b"CSRUN_RANK=0" in variables:
            kinds[pid] = "chief"
        elif any(each.startswith(b"CSRUN_RANK=") for each in variables):
            kinds[pid] = "workers"
    return kinds


def _separate_engine(kinds: Mapping[int, str]) -> None:
    """Give the engine the first core, and everything else the others."""
    engine, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return
    for pid, kind in kinds.items():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), [engine] if kind == "engine" else others)


def _cpu_seconds(kinds: Mapping[int, str]) -> dict[str, float]:
    seconds = dict.fromkeys(kinds.values(), 0.0)
    for pid, kind in kinds.items():
        # User and system time; the name in parentheses before them may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds[kind] += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return seconds


def _run_engine(artifact: Path, steps: int) -> Measured:
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "benchmarks.training_jobs", f"--engine={artifact}", f"--steps={steps}"]
    done = subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, [core]),
    )  # fmt: skip
    steps_per_s, cpu_s = json.loads(done.stdout)
    return Measured(steps_per_s, {"engine": cpu_s})


def _step_engine(path: Path, steps: int) -> tuple[float, float]:
    """Return the steps per second of the engine by itself, and its CPU seconds a step."""
    from cs_system.engine.device import start_device
    from cs_system.engine.pipelined import PipelinedEngine

    start_device(None)
    step = open_artifact(path).step
    (executable,) = step.executables
    interface = step.interface
    size = ring_size(interface, 1 << 30)
    engine = PipelinedEngine(
        open_artifact(path).executable_bytes(executable.name), interface, size.chunk_batches
    )
    engine.program()
    generator = np.random.default_rng(0)
    engine.put_state(
        {
            spec.name: (0.02 * generator.standard_normal(spec.shape)).astype(spec.dtype)
            for spec in interface.state
        }
    )
    ring = RingMemory(BatchLayout.of_step(interface.inputs), size.chunk_batches, size.chunks)
    for chunk in ring.chunks:
        for array in chunk:
            array[...] = generator.random(array.shape) if array.dtype.kind == "f" else 1
    run = stepping(engine, ring.chunks[0])
    run(steps // 10)
    threads = _read_threads(os.getpid())
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    run(steps)
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return steps / (seconds - _displaced_s(threads, _read_threads(os.getpid()))), cpu_s / steps


def _compile(system: RunningSystem, model: str, folder: Path) -> Path:
    """Train a few steps, so that compiler and XLA have compiled the step; return the artifact."""
    command = _command(system, model, _subfolder(folder, model), 40, 1)
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (manifest,) = (folder / model).rglob("manifest.json")
    return manifest.parent


def _subfolder(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def _command(system: RunningSystem, model: str, folder: Path, steps: int, workers: int) -> list[str]:
    program = ROOT / "models" / model / "tf"
    params = yaml.safe_load((program / "configs" / f"{PARAMS[model]}.yaml").read_text())
    params["runconfig"] |= {
        "max_steps": steps,
        "save_checkpoints_steps": steps,
        "log_step_count_steps": steps,
    }
    file = folder / "params.yaml"
    file.write_text(yaml.safe_dump(params))
    return [
        "bin/csrun_wse", "--total-nodes=1", f"--tasks-per-node={workers + 1}", "--cpus-per-task=1",
        f"--log-dir={folder}/logs", "python", str(program / "run.py"), "--mode=train", f"--params={file}",
        f"--cs_ip={system.address}", f"--model_dir={folder}/model_dir",
    ]  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(PARAMS)}; default: all")
    parser.add_argument("--workers", type=int, action="append", help="number of workers; default: 1, 2 and 4")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of two runs")
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(_step_engine(options.engine, options.steps)))
    else:
        print(
            table(
                rows(
                    options.models or tuple(PARAMS), options.workers or WORKERS, options.steps, options.rounds
                )
            )
        )
