"""Workers of a PyTorch program: serving the inputs of the chief's runs, and starting local workers.

A worker runs the same program up to the call that configures the run, and creates no model. The chief writes
a file with the input function of each of its runs (`input.transfer`), which the worker serves in sequence. A
worker that was killed and restarted continues with the newest.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from cs_runtime import terminal
from cs_runtime.exits import report_errors
from cs_runtime.files import make_directory
from cs_runtime.input_source import Batch, InputSource, Sharding
from cs_runtime.local_job import LocalJob
from cs_runtime.tasks import current, has_input
from cs_runtime.worker import run_worker
from cs_toolkit.files import replace_file
from cs_toolkit.step import TensorSpec
from csrun.tasks.roles import TaskInfo
from csrun.wrappers import BIN, PYTHON_VARIABLE
from cstorch.chosen_backend import choose, current_backend
from cstorch.config import BackendType
from cstorch.errors import WorkersEndedError
from cstorch.input.loader import InputLoader
from cstorch.input.transfer import InputFiles, TransferredInput, files_of_job
from cstorch.job import reading_as
from cstorch.program import Program, configuration
from cstorch.tracing.precision import mix_precision, name_half_dtype
from input_rules.input_export import Shard

log = logging.getLogger("cstorch")

_POLL_INTERVAL_S = 0.1

_JOB_FILE = "job.json"


def job_files(task: TaskInfo) -> InputFiles:
    """Return the files in which the chief transfers inputs to the workers of a job."""
    return files_of_job(job_directory(task), task.token)


def job_directory(task: TaskInfo) -> Path:
    """Return the directory of the launcher's logs, or one in `model_dir` without a launcher."""
    directory = os.environ.get("CSRUN_LOG_DIR")
    return Path(directory) if directory else configuration().model_dir / f".{task.job_id}"


def serve_and_leave() -> NoReturn:
    """Stream the inputs that the chief transfers until its program ends, then end this process.

    Raises:
        Exception: Any error of the input function, and errors of `cs_stream` and `cs_system`.
    """
    task = current()
    log.info("worker %d: waiting for the input functions of the chief", task.index)
    serve(job_files(task), task)
    sys.exit(0)


def serve(files: InputFiles, task: TaskInfo) -> None:
    """Stream the input of every run of the chief, beginning with the newest one."""
    if current_backend(raise_exception=False) is None:
        choose(BackendType.CSX)  # input functions ask for the backend
    for run in _runs(files):
        given = files.read(run)
        name_half_dtype(given.half_dtype)
        mix_precision(given.is_mixed)
        shared = task if given.settings.mode == "train" else replace(task, num_workers=1)
        if has_input(shared):
            with source_of(given, task.index, shared.num_workers) as source:
                run_worker(source, given.settings, shared, run)


@contextmanager
def source_of(given: TransferredInput, worker: int, count: int) -> Iterator[InputSource]:
    """Open the input of one of `count` workers; within the body the process reads that worker's share."""
    # Step s takes the batch of worker s modulo `count`, whatever position the chief has loaded. Batch b of
    # the input is in share b modulo `count`. So if b is ahead of s, workers read each other's shares.
    skipped, share = divmod(given.batches_ahead + worker, count)
    with reading_as(count, share):
        yield _Source(given, skipped)


def _runs(files: InputFiles) -> Iterator[int]:
    """Yield the numbers of the runs as they start; runs that have ended in the meantime are skipped."""
    last = 0
    while True:
        newest = files.newest() or 0
        if newest > last:
            last = newest
            yield last
        elif files.end_file.exists():
            return
        else:
            time.sleep(_POLL_INTERVAL_S)


class _Source:
    """The source of a transferred input (`cs_runtime.input_source.InputSource`).

    Args:
        given: The input.
        ahead: Batches of its share that this worker skips.
    """

    def __init__(self, given: TransferredInput, ahead: int) -> None:
        self._facts = given.facts
        self._loader = InputLoader(given.function, *given.args, **given.kwargs)
        self._loader.seed = given.seed
        self._ahead, self._all_ahead = ahead, given.batches_ahead

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return types and shapes of the tensors in a batch."""
        return self._loader.inputs()

    def input_facts(self) -> dict[str, str]:
        """Return program and function as on the chief, and the tensors as this task reads them."""
        return {**self._loader.input_facts(), **self._facts}

    def sharding(self) -> Sharding:
        """Return how the share of a worker is determined."""
        return self._loader.sharding()

    def batches(self, skip: int) -> Iterator[Batch]:
        """Yield the batches after the first `skip` ones."""
        self._loader.batches_ahead = self._ahead
        return self._loader.batches(skip)

    def part(self, shard: Shard, first: int, stride: int) -> Iterator[Batch]:
        """Yield the batches of a part of a shard."""
        self._loader.batches_ahead = self._all_ahead
        return self._loader.part(shard, first, stride)


class LocalWorkers:
    """Worker processes that a program starts on this machine if no launcher has started any.

    Args:
        number: Number of workers.
        directory: Directory for their files and logs.
        task: The task of this process.

    Attributes:
        task: The task of this process as their chief.
    """

    def __init__(self, number: int, directory: Path, task: TaskInfo) -> None:
        self.task = replace(task, num_workers=number, in_process_worker=False, num_tasks=number + 1)
        self._directory = directory = directory.absolute()
        make_directory(directory.parent)
        directory.mkdir(mode=0o700)
        identity = {"job_id": task.job_id, "token": task.token}
        replace_file(directory / _JOB_FILE, json.dumps(identity), mode=0o600)
        self._files, self._logs = files_of_job(directory, task.token), directory / "logs"
        self._files.make_directory()
        log.info("starting %d workers; their logs: %s", number, self._logs)
        atexit.register(self._tidy)  # registered first, so that it runs after the end of the job
        # The launchers' wrapper, if it runs this program, provides modules for input functions that import
        # older libraries or missing packages.
        wrapped = os.environ.get(PYTHON_VARIABLE) == sys.executable
        interpreter = str(BIN / "python") if wrapped else sys.executable
        arguments = [interpreter, "-P", "-m", "cstorch", str(directory)]
        self._job = LocalJob(number, arguments, self._logs, self._files.end_file)

    def _tidy(self) -> None:
        if not self._job.ended:
            shutil.rmtree(self._directory, ignore_errors=True)

    def explain(self, error: BaseException) -> BaseException:
        """Return the error that ends the program: that of the workers if their end has interrupted it."""
        if isinstance(error, KeyboardInterrupt) and self._job.ended:
            return WorkersEndedError(self._logs)
        return error


def main() -> None:
    """Run a worker: `python -m cstorch DIRECTORY`."""
    terminal.configure_logging("cstorch")
    with report_errors():
        directory = Path(sys.argv[1])
        job = json.loads((directory / _JOB_FILE).read_text())
        # Input functions may ask whether a system is used.
        Program.current().configure(configuration(), "a worker")
        task = replace(current(), job_id=job["job_id"], given_token=job["token"])
        serve(files_of_job(directory, task.token), task)
