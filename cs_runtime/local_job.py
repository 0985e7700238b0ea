"""Workers of a program that was started without a launcher: a job of csrun_wse that runs beside it.

The job is on this machine or on nodes of a scheduler, as the site has it. Its first task waits for the end
of the program; the others run a command, again where a signal has killed it. As a module this is the
launcher of the job, and each of its tasks:

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
from csrun.tasks.processes import signalled_at_parents_death
from csrun.tasks.roles import TaskInfo

MOST_STARTS = 5
"""A command that is killed so often will be killed again."""

_MODULE = "cs_runtime.local_job"
_LOOK_EVERY_S = 0.2
_PATIENCE_S = 5.0
"""So long the system has to say what became of a worker before the end of the job ends the program."""
_END_TIMEOUT_S = 15.0
_LAST_LINES_S = 2.0
_LAUNCHER = "csrun_wse: "
"""Begins the lines that the launcher itself says."""
_GOOD_ENDS = ("the chief has finished", "the job has ended well")
_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class JobBeside:
    """The job, which starts now and ends with this program, however that ends.

    Args:
        workers: How many.
        command: What each of them runs.
        log_dir: For the logs of its tasks.
        end_file: Is there when the program has ended; all tasks see it.

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
            start_new_session=True,  # Ctrl-C is for the program, which then ends its workers
        )
        atexit.register(self.end)
        self._relay = threading.Thread(target=self._tell, name="job-beside-output", daemon=True)
        self._relay.start()
        threading.Thread(target=self._watch, name="job-beside", daemon=True).start()

    def _tell(self) -> None:
        """What the launcher says, as of the workers; their good end is no news beside the program's."""
        assert self._launcher.stderr is not None
        for line in self._launcher.stderr:
            if not (line.startswith(_LAUNCHER) and any(end in line for end in _GOOD_ENDS)):
                sys.stderr.write(line.replace(_LAUNCHER, "workers: ", 1))

    def _watch(self) -> None:
        self._launcher.wait()
        if not self._end_file.exists():
            self.ended = True
            time.sleep(_PATIENCE_S)
            if not self._end_file.exists():
                interrupt_main()

    def end(self) -> None:
        """Ends it; later calls, and those in children of this process, do nothing."""
        if os.getpid() != self._owner:
            return
        self._end_file.touch()
        try:
            self._launcher.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._launcher.terminate()
            self._launcher.wait()
        self._relay.join(_LAST_LINES_S)


def launch(workers: str, log_dir: str, end_file: str, *command: str) -> None:
    """Runs the job, and ends it when the program that has started this process is gone."""
    from csrun.commands.wse import main as csrun_wse

    signalled_at_parents_death(signal.SIGTERM)
    layout = ["--total-nodes=1", f"--tasks-per-node={int(workers) + 1}", f"--log-dir={log_dir}"]
    sys.argv[1:] = [*layout, "--", *_python(_MODULE), "task", end_file, *command]
    csrun_wse()


def run_task(end_file: str, *command: str) -> int:
    """What a task of the job does; its exit code."""
    if TaskInfo.from_environment().role == "worker":
        return run_again(command)
    while not Path(end_file).exists():
        time.sleep(_LOOK_EVERY_S)
    return 0


def run_again(command: Sequence[str]) -> int:
    """Runs a command, again where a signal has killed it that asks for no end; its exit code."""
    for start in range(1, MOST_STARTS + 1):
        code = subprocess.run(command, check=False).returncode
        if code >= 0:
            return code
        killer = signal.Signals(-code)
        if killer in _ENDINGS or start == MOST_STARTS:
            break
        sys.stderr.write(f"killed by {killer.name}; starting it again\n")
    return 128 - code


def _python(module: str) -> list[str]:
    """The words that run a module, without the current directory in its import path."""
    return [sys.executable, "-P", "-m", module]


def main() -> int:
    """Entry point of the module."""
    what, *words = sys.argv[1:]
    if what == "task":
        return run_task(*words)
    launch(*words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
