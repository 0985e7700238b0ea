"""A user's program for fault tests, whose input misbehaves as FAULT in the environment says.

Its front end is NumPy's: a job starts in a third of the time that one of `tensorflow_program.py` takes, and
in half of that where another job has left its artifact in COMPILE_DIR.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from cs_runtime import terminal
from cs_runtime.exits import report_errors
from cs_runtime.options import RunSettings
from cs_runtime.progress import StepEvents
from cs_runtime.training import train
from cs_toolkit.execution_options import ExecutionOptions
from cs_toolkit.step import TensorSpec
from input_rules.input_export import Shard

sys.path[0] = str(Path(__file__).parents[2] / "programs")
from numpy_program import BATCH, NumpyFrontEnd, Scalars  # noqa: E402

FAULT = os.environ.get("FAULT", "")
ROLE = os.environ.get("CSRUN_ROLE", "chief") + os.environ.get("CSRUN_TASK_INDEX", "0")
DIFFERS = FAULT == "differ" and ROLE == "worker1"
LAST_WORKER = f"worker{int(os.environ.get('CSRUN_NUM_TASKS', '2')) - 2}"
# Number of the batch at which that worker is killed, by the number of its restarts: DEATHS="0:20 1:35".
DEATHS = dict(entry.split(":") for entry in os.environ.get("DEATHS", "").split())
JOINED = Path("worker0_joined")
JOIN_TIMEOUT_S = 60.0


class FaultyFrontEnd(NumpyFrontEnd):
    def inputs(self) -> tuple[TensorSpec, ...]:
        records = 2 * BATCH if DIFFERS else BATCH
        return tuple(replace(spec, shape=(records, *spec.shape[1:])) for spec in super().inputs())

    def input_facts(self) -> Mapping[str, str]:
        if DIFFERS:
            _wait_for(JOINED)  # a task that has not joined when the job ends could not say why in its log
        return super().input_facts()

    def batches(self, skip: int) -> Iterator[tuple[np.ndarray, ...]]:
        return _with_faults(super().batches(skip), skip)

    def part(self, shard: Shard, first: int, stride: int) -> Iterator[tuple[np.ndarray, ...]]:
        return _with_faults(super().part(shard, first, stride), first // stride)


def _with_faults(batches: Iterator[tuple[np.ndarray, ...]], first: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the batches of this worker from number `first` on, and fail as FAULT says."""
    if FAULT == "differ" and ROLE == "worker0":
        JOINED.touch()
    for number, batch in enumerate(batches, first):
        if FAULT == "die" and ROLE == "worker1" and number == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        if ROLE == LAST_WORKER and f"{number}" == DEATHS.get(os.environ.get("CSRUN_RESTARTS", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "asked early" and number == first:
            os.kill(os.getpid(), signal.SIGUSR1)
        if FAULT == "slow":
            time.sleep(0.016)
        yield batch


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(file)
        time.sleep(0.02)


@report_errors()
def main(cs_ip: str, model_dir: str, max_steps: str) -> None:
    terminal.configure_logging("numpy_program")
    if FAULT == "ends early" and ROLE == LAST_WORKER:
        return
    for number in max_steps.split(","):  # several runs in sequence
        _train(cs_ip, model_dir, int(number))


def _train(cs_ip: str, model_dir: str, number: int) -> None:
    limit = {"max_steps": "last_step", "steps": "steps"}[os.environ.get("LIMIT", "max_steps")]
    settings = RunSettings(
        "train",
        Path(model_dir),
        BATCH,
        compile_dir=Path(os.environ["COMPILE_DIR"]),
        cs_ip=cs_ip,
        save_every_steps=int(os.environ.get("SAVE_EVERY", "10")),
        log_every_steps=10,
        **{limit: number},
        options=ExecutionOptions(num_csx=int(os.environ.get("NUM_CSX", "1"))),
    )
    train(FaultyFrontEnd(settings.model_dir), settings, StepEvents(Scalars(), 10, BATCH))


if __name__ == "__main__":
    main(*sys.argv[1:])
