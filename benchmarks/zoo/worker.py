"""A process that has imported a framework and its libraries, and forks one for each architecture.

    python -m benchmarks.zoo.worker FRAMEWORK FOLDER

It reads lines of JSON, `{"library": ..., "name": ..., "way": ..., "limit_s": ...}`, and answers each with
another one.
An architecture that never returns, or takes its process with it, is a result like any other.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.zoo.run import LIBRARIES, Result, models_of, run, training_of
from cs_runtime.embedded_system import EmbeddedSystem
from cs_toolkit.garbage import use_infrequent_collection
from csrun.tasks.processes import signal_on_parent_death

ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.05
_LAST = 600

QUICK_XLA = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    " --xla_cpu_use_fusion_emitters=0"
)
"""XLA optimizes nothing: models run for five steps. Numbers are equal but for rounding."""


class Worker:
    """Runs architectures of a framework, each in a separate process, on one embedded CS system.

    Args:
        framework: "torch" or "tensorflow".
        folder: For logs, and for files of runs while they last.
    """

    def __init__(self, framework: str, folder: Path) -> None:
        self._folder = folder
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # libraries print
        self._system = EmbeddedSystem(folder / f"cs_system-{os.getpid()}.log")
        for library in LIBRARIES[framework]:
            models_of(library).preload()
            training_of(library).preload()
        # Searches for garbage would copy all pages that forked processes share.
        use_infrequent_collection()
        gc.collect()
        gc.freeze()

    def serve(self) -> None:
        """Answers requests until there are no more."""
        for line in sys.stdin:
            result = self.result_of(**json.loads(line))
            self._answers.write(json.dumps(result) + "\n")
            self._answers.flush()

    def result_of(self, library: str, name: str, way: str, limit_s: float) -> dict[str, Any]:
        """Runs one architecture.

        Args:
            library: One of the framework.
            name: Of the architecture.
            way: How it is trained.
            limit_s: After that it is a timeout.
        """
        folder = self._folder / "runs" / f"{library}-{re.sub('[^a-zA-Z0-9_.-]', '_', name)}-{way}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begin = time.monotonic()
        start = self._start_job if way == "workers" else self._fork
        process = start(library, name, way, folder)
        try:
            status = _wait(process, begin + limit_s)
        except SystemExit:  # the asking process was interrupted
            _end(process)
            raise
        result = Result(library, name, way).as_dict()
        with suppress(OSError, ValueError):
            result = json.loads((folder / "result.json").read_text())
        log = (folder / "log.txt").read_text(errors="replace")
        if status is None:
            result |= {"status": "timeout", "reason": f"not done after {limit_s:g} s"}
        elif status and result["status"] in ("crashed", "ok") and not result["reason"]:
            last = log.strip().splitlines()[-3:]
            result |= {"status": "crashed", "reason": f"exit code {status}: {' | '.join(last)}"[-_LAST:]}
        if result["status"] in ("ok", "skipped"):
            shutil.rmtree(folder, ignore_errors=True)
        return {**result, "wall_s": round(time.monotonic() - begin, 1)}

    def _fork(self, library: str, name: str, way: str, folder: Path) -> int:
        pid = os.fork()
        if not pid:
            self._run(library, name, way, folder)
        return pid

    def _run(self, library: str, name: str, way: str, folder: Path) -> NoReturn:
        """Run the forked process."""
        code = 1
        try:
            signal_on_parent_death(signal.SIGKILL)
            os.setsid()
            with (folder / "log.txt").open("wb") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            os.chdir(folder)
            os.environ["CS_IP"] = self._system.address
            result = run(library, name, way, folder)
            (folder / "result.json").write_text(json.dumps(result.as_dict()))
            code = 0
        finally:
            # Nothing else of this process is wanted, neither what libraries do at exit.
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _start_job(self, library: str, name: str, way: str, folder: Path) -> int:
        """A job of csrun_wse with a chief and two workers."""
        command = [str(ROOT / "bin" / "csrun_wse"), "--total-nodes=1", "--tasks-per-node=3"]
        program = ["python", "-m", "benchmarks.zoo.run", library, name, way, str(folder)]
        with (folder / "log.txt").open("wb") as log:
            return subprocess.Popen(
                [*command, *program],
                cwd=folder,
                env={**os.environ, "CS_IP": self._system.address, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ).pid


def _wait(pid: int, deadline: float) -> int | None:
    """The exit code of a process; None where it was still running and was ended with all its children."""
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
    _end(pid)
    return None


def _end(pid: int) -> None:
    """End a process that leads a session, and all others in it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(pid, number)
        time.sleep(1.0)
    os.waitpid(pid, 0)


def main() -> None:
    """Entry point."""
    signal_on_parent_death(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    warnings.filterwarnings("ignore")
    os.environ.setdefault("XLA_FLAGS", QUICK_XLA)
    framework, folder = sys.argv[1:]
    Worker(framework, Path(folder).absolute()).serve()


if __name__ == "__main__":
    main()
