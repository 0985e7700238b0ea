"""Workers for a program that was started without a launcher: a `csrun_wse` job that runs next to it.

The job runs on this machine or on the nodes of a scheduler, depending on the site. Its first task waits for
the end of the program. The others become the command, which the launcher restarts if it dies. The module
itself is the launcher of the job and each of its tasks:

    python -m cs_runtime.local_job launch WORKERS LOG_DIR END_FILE COMMAND...
    python -m cs_runtime.local_job task END_FILE COMMAND...
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from _thread import interrupt_main
from collections.abc import Sequence
from pathlib import Path

from csrun.tasks.environment import program_environment, this_toolkit
from csrun.tasks.processes import signal_on_parent_death
from csrun.tasks.roles import TaskInfo

_MODULE = "cs_runtime.local_job"
_POLL_INTERVAL_S = 0.2
# How long the system has to report why a worker ended before the end of the job ends the program.
_GRACE_PERIOD_S = 5.0
_END_TIMEOUT_S = 15.0
_OUTPUT_TIMEOUT_S = 2.0
_LAUNCHER = "csrun_wse: "  # prefix of the launcher's own lines
_SUCCESS_LINES = ("the chief has finished", "the job completed")


class LocalJob:
    """A job of workers, started by the constructor, that ends when this program does.

    Args:
        workers: Number of workers.
        command: Command that each worker runs.
        log_dir: Directory for the logs of its tasks.
        end_file: Created when the program ends; every task must be able to see it.

    Attributes:
        ended: It ended before the program.
    """

    def __init__(self, workers: int, command: Sequence[str], log_dir: Path, end_file: Path) -> None:
        self.ended = False
        self._end_file, self._owner = end_file, os.getpid()
        self._launcher = subprocess.Popen(
            [*_python(_MODULE), "launch", str(workers), str(log_dir), str(end_file), *command],
            env=program_environment(os.environ, this_toolkit()).apply(os.environ),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C goes to the program only, which then ends its workers
        )
        atexit.register(self.end)
        self._relay = threading.Thread(target=self._relay_output, name="local-job-output", daemon=True)
        self._relay.start()
        threading.Thread(target=self._watch, name="local-job", daemon=True).start()

    def _relay_output(self) -> None:
        """Print the launcher's output, without its report of success."""
        # The program reports its success itself.
        assert self._launcher.stderr is not None
        for line in self._launcher.stderr:
            if not (line.startswith(_LAUNCHER) and any(end in line for end in _SUCCESS_LINES)):
                sys.stderr.write(line.replace(_LAUNCHER, "workers: ", 1))

    def _watch(self) -> None:
        self._launcher.wait()
        if not self._end_file.exists():
            self.ended = True
            time.sleep(_GRACE_PERIOD_S)
            if not self._end_file.exists():
                interrupt_main()

    def end(self) -> None:
        """End the job; later calls, and calls in child processes, do nothing."""
        # A forked child inherits the exit handler, and must not end the job of its parent.
        if os.getpid() != self._owner:
            return
        self._end_file.touch()
        try:
            self._launcher.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._launcher.terminate()
            self._launcher.wait()
        self._relay.join(_OUTPUT_TIMEOUT_S)


def launch(workers: str, log_dir: str, end_file: str, *command: str) -> None:
    """Run the job, and end it when the parent process ends."""
    from csrun.commands.wse import main as csrun_wse

    signal_on_parent_death(signal.SIGTERM)
    layout = ["--total-nodes=1", f"--tasks-per-node={int(workers) + 1}", f"--log-dir={log_dir}"]
    sys.argv[1:] = [*layout, "--", *_python(_MODULE), "task", end_file, *command]
    csrun_wse()


def run_task(end_file: str, *command: str) -> int:
    """Run one task of the job, and return its exit code; a worker is replaced by the command."""
    if TaskInfo.from_environment().role == "worker":
        os.execvp(command[0], command)
    while not Path(end_file).exists():
        time.sleep(_POLL_INTERVAL_S)
    return 0


def _python(module: str) -> list[str]:
    """Return the command line that runs a module without the current directory in its import path."""
    return [sys.executable, "-P", "-m", module]


def main() -> int:
    """Entry point of the module."""
    what, *arguments = sys.argv[1:]
    if what == "task":
        return run_task(*arguments)
    launch(*arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
