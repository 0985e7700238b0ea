"""What a worker of a PyTorch program does: it serves the inputs of the chief's runs, one after the other.

A worker runs the same program up to where that configures the run, and no further: it builds no model. The
chief writes a file with the input function for each of its runs (`handed_input`). One that was killed and
is started again goes on with the newest.
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
from cs_runtime.input_source import Batch, InputSource
from cs_runtime.local_job import LocalJob
from cs_runtime.tasks import current
from cs_runtime.worker import run_worker
from cs_toolkit.files import replace_file
from cs_toolkit.step import TensorSpec
from csrun.tasks.roles import TaskInfo
from csrun.wrappers import BIN, PYTHON_VARIABLE
from cstorch.backends.base_backend import choose, current_backend
from cstorch.config import BackendType
from cstorch.errors import WorkersEndedError
from cstorch.input.loader import InputLoader
from cstorch.input.transfer import InputFiles, TransferredInput, files_of_job
from cstorch.job import reading_as
from cstorch.precision import mix_precision, name_half_dtype
from cstorch.program import Program, configuration

log = logging.getLogger("cstorch")

_LOOK_EVERY_S = 0.1


def job_files(task: TaskInfo) -> InputFiles:
    """Where the chief and the workers of a job exchange inputs."""
    return files_of_job(job_directory(task), task.token)


def job_directory(task: TaskInfo) -> Path:
    """The folder of the launcher's logs, else one in `model_dir`."""
    directory = os.environ.get("CSRUN_LOG_DIR")
    return Path(directory) if directory else configuration().model_dir / f".{task.job_id}"


def serve_and_leave() -> NoReturn:
    """Streams what the chief asks for until its program ends; ends this process.

    Raises:
        Exception: whatever the input function raises; errors of `cs_stream` and `cs_system`.
    """
    task = current()
    log.info("worker %d: waiting for the input functions of the chief", task.index)
    serve(job_files(task), task)
    sys.exit(0)


def serve(files: InputFiles, task: TaskInfo) -> None:
    """Streams the input of every run of the chief's, from the newest that is there on."""
    if current_backend(raise_exception=False) is None:
        choose(BackendType.CSX)  # input functions ask which one they are for
    for run in _runs(files):
        handed = files.read(run)
        name_half_dtype(handed.half_dtype)
        mix_precision(handed.is_mixed)
        count = task.num_workers if handed.settings.mode == "train" else 1
        if task.index >= count:
            log.info("nothing to do for worker %d: worker 0 reads the whole input", task.index)
            continue
        with source_of(handed, task.index, count) as source:
            run_worker(source, handed.settings, replace(task, num_workers=count), run)


@contextmanager
def source_of(handed: TransferredInput, worker: int, count: int) -> Iterator[InputSource]:
    """Open the input of one of `count` workers; in the body the process reads as that worker.

    Step s takes the batch of worker s modulo `count`, whatever position the chief has loaded. Batch b of the
    input is in the share of reader b modulo `count`. So where b is ahead of s, workers read the shares of
    others.
    """
    place, reader = divmod(handed.batches_ahead + worker, count)
    with reading_as(count, reader):
        yield _Source(handed, place)


def _runs(files: InputFiles) -> Iterator[int]:
    """Numbers of the runs, each when it is there; a run that has gone by meanwhile is left out."""
    last = 0
    while True:
        newest = files.newest() or 0
        if newest > last:
            last = newest
            yield last
        elif files.end_file.exists():
            return
        else:
            time.sleep(_LOOK_EVERY_S)


class _Source:
    """Implements `cs_runtime.input_source.InputSource` for an input that was handed over.

    Args:
        handed: The input.
        ahead: Batches of its share that this worker skips.
    """

    def __init__(self, handed: TransferredInput, ahead: int) -> None:
        self._facts = handed.facts
        self._loader = InputLoader(handed.function, *handed.args, **handed.kwargs)
        self._loader.seed = handed.seed
        self._loader.batches_ahead = ahead

    def inputs(self) -> tuple[TensorSpec, ...]:
        """See `cs_runtime.input_source.InputSource`."""
        return self._loader.inputs()

    def input_facts(self) -> dict[str, str]:
        """Program and function as on the chief, which has sent them; tensors as this task reads them."""
        return {**self._loader.input_facts(), **self._facts}

    def batches(self, skip: int) -> Iterator[Batch]:
        """See `cs_runtime.input_source.InputSource`."""
        return self._loader.batches(skip)


_JOB_FILE = "job.json"


class OwnWorkers:
    """The workers of this program, which serve what it hands over until it ends.

    Args:
        number: Of workers.
        directory: For their files and logs, which they see too.
        task: This process.

    Attributes:
        task: This process as the chief of them.
    """

    def __init__(self, number: int, directory: Path, task: TaskInfo) -> None:
        self.task = replace(task, num_workers=number, in_process_worker=False, num_tasks=number + 1)
        self._directory = directory = directory.absolute()
        directory.mkdir(mode=0o700, parents=True)
        identity = {"job_id": task.job_id, "token": task.token}
        replace_file(directory / _JOB_FILE, json.dumps(identity), mode=0o600)
        self._files, self._logs = files_of_job(directory, task.token), directory / "logs"
        self._files.make_directory()
        log.info("starting %d workers; their logs: %s", number, self._logs)
        atexit.register(self._tidy)  # last: it comes behind the end of the job
        words = [_interpreter(), "-P", "-m", "cstorch", str(directory)]
        self._job = LocalJob(number, words, self._logs, self._files.end_file)

    def _tidy(self) -> None:
        if not self._job.ended:
            shutil.rmtree(self._directory, ignore_errors=True)

    def explain(self, error: BaseException) -> BaseException:
        """The error that ends the program: the end of the workers where that has interrupted it."""
        if isinstance(error, KeyboardInterrupt) and self._job.ended:
            return WorkersEndedError(self._logs)
        return error


def _interpreter() -> str:
    """Return the interpreter for workers: that of this program, with the launchers' modules if it has them.

    Modules of an input function may be made for older libraries, or import packages that are missing.
    """
    return str(BIN / "python") if os.environ.get(PYTHON_VARIABLE) == sys.executable else sys.executable


def main() -> None:
    """What a worker runs: `python -m cstorch DIRECTORY`."""
    terminal.configure_logging("cstorch")
    with report_errors():
        directory = Path(sys.argv[1])
        identity = json.loads((directory / _JOB_FILE).read_text())
        # Input functions may ask whether a system is used.
        Program.current().configure(configuration(), "a worker")
        serve(files_of_job(directory, identity["token"]), replace(current(), **identity))
