"""Worker processes that a program starts which was itself started without a launcher."""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from cs_runtime import terminal
from cs_runtime.exits import report_errors
from cs_runtime.local_job import JobBeside
from cs_runtime.tasks import current
from cs_toolkit.files import replace_file
from csrun.tasks.roles import TaskInfo
from csrun.wrappers import BIN, PYTHON_VARIABLE
from cstorch.config import configuration, keep_configuration
from cstorch.errors import WorkersEndedError
from cstorch.handed_input import files_of_job
from cstorch.worker import serve

log = logging.getLogger("cstorch")

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
        self._job = JobBeside(number, words, self._logs, self._files.end_file)

    def _tidy(self) -> None:
        if not self._job.ended:
            shutil.rmtree(self._directory, ignore_errors=True)

    def explained(self, error: BaseException) -> BaseException:
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
    terminal.set_up("cstorch")
    with report_errors():
        directory = Path(sys.argv[1])
        identity = json.loads((directory / _JOB_FILE).read_text())
        keep_configuration(configuration(), "a worker")  # input functions may ask whether a system is used
        serve(files_of_job(directory, identity["token"]), replace(current(), **identity))
