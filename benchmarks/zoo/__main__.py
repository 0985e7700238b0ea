"""Trains every architecture of transformers, timm and Keras that a tiny model can be made of.

    make zoo [ZOO="bert t5"]
    python -m benchmarks.zoo [NAME ...] [--library=timm] [--every=10] [--again=refused,crashed] [--fresh]

Each is trained for five steps by its framework and on a simulated CS system, and compared. Results are lines
of JSON in docs/reference/models.jsonl, one for each architecture and way; docs/reference/models.md is written
from all of them. A run does what has no result there yet, so one that was stopped continues; `--fresh`
starts over.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.zoo import page
from benchmarks.zoo.run import LIBRARIES, STATUSES, VALIDATE, WAYS, models_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "reference" / "models.jsonl"
PAGE = ROOT / "docs" / "reference" / "models.md"
RUNS = ROOT / "benchmarks" / "results" / "zoo"
"""Logs, and the files of runs that failed."""
ALL_LIBRARIES = tuple(library for libraries in LIBRARIES.values() for library in libraries)
NTH = 10
"""Every tenth architecture also trains by weight streaming, and with workers."""

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Request:
    """An architecture, and how it is to be trained."""

    library: str
    name: str
    way: str

    @property
    def framework(self) -> str:
        """The framework of its library."""
        return next(name for name, libraries in LIBRARIES.items() if self.library in libraries)

    @property
    def key(self) -> Key:
        """Return the key of its result."""
        return self.library, self.name, self.way


def requests(
    libraries: Sequence[str], only: Sequence[str] = (), every: int = 1, ways: Sequence[str] = WAYS
) -> list[Request]:
    """The architectures to run.

    Args:
        libraries: Names of libraries.
        only: Patterns of names; all where there are none.
        every: Run each `every`-th architecture only.
        ways: How they are trained; in all ways but the first only every tenth.
    """
    found = []
    for library in libraries:
        names = models_of(library).names()
        for index, name in enumerate(names):
            some = [way for way in ways if index % NTH == 0 or way in (WAYS[0], VALIDATE)]
            if only and not any(fnmatch.fnmatchcase(name, pattern) for pattern in only):
                continue
            if not only and index % every:
                continue
            found += [Request(library, name, way) for way in some]
    return found


class Pool:
    """Processes that run architectures side by side.

    Args:
        waiting: What is to be run.
        processes: Number of architectures at a time.
        limit_s: Seconds for one.
        results: The file that results are appended to.
        folder: For logs, and for the files of runs that fail.
    """

    def __init__(
        self,
        waiting: Sequence[Request],
        processes: int,
        limit_s: float,
        results: Path,
        folder: Path = RUNS,
    ) -> None:
        self._waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        for request in waiting:
            self._waiting.put(request)
        self._count, self._processes, self._limit_s = len(waiting), processes, limit_s
        self._results, self._folder, self._lock = results, folder, threading.Lock()
        self._started: list[subprocess.Popen[str]] = []
        self._done, self._statuses, self._begin = 0, Counter[str](), time.monotonic()
        self._stopped = False

    def run(self) -> None:
        """Runs all; ends its processes in every case."""
        self._results.parent.mkdir(parents=True, exist_ok=True)
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._processes)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            self._stopped = True
            for process in self._started:
                process.terminate()
            for process in self._started:
                process.wait()

    def _work(self) -> None:
        """Gives a worker what waits, one by one; a worker knows one framework."""
        worker: subprocess.Popen[str] | None = None
        framework = ""
        while not self._stopped:
            try:
                request = self._waiting.get_nowait()
            except queue.Empty:
                break
            if worker is None or framework != request.framework:
                _end(worker)
                worker, framework = self._start(request.framework), request.framework
            answer = self._ask(worker, request)
            if answer is None:
                worker = None
                continue
            self._keep(answer)
        _end(worker)

    def _start(self, framework: str) -> subprocess.Popen[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.zoo.worker", framework, str(self._folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self._folder / f"worker-{framework}.log").open("ab"),
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def _ask(self, worker: subprocess.Popen[str], request: Request) -> dict[str, Any] | None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        limit = self._limit_s * (3 if request.way == "workers" else 1)
        try:
            worker.stdin.write(json.dumps({**asdict(request), "limit_s": limit}) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            if not self._stopped:
                log = self._folder / f"worker-{request.framework}.log"
                print(f"the worker of {request.framework} ended: see {log}", flush=True)
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _keep(self, result: dict[str, Any]) -> None:
        with self._lock:
            with self._results.open("a", encoding="utf-8") as file:
                file.write(_line(result))
            self._done += 1
            self._statuses[result["status"]] += 1
            seconds = time.monotonic() - self._begin
            left = seconds / self._done * (self._count - self._done)
            counts = ", ".join(
                f"{self._statuses[status]} {status}" for status in STATUSES if self._statuses[status]
            )
            print(
                f"{self._done}/{self._count} {result['library']} {result['name']} {result['way']}: "
                f"{result['status']} {result['reason'].splitlines()[0][:150] if result['reason'] else ''} "
                f"[{result['wall_s']:g} s; {counts}; {left / 60:.0f} min left]",
                flush=True,
            )


def _end(worker: subprocess.Popen[str] | None) -> None:
    if worker is not None and worker.stdin is not None:
        worker.stdin.close()
        worker.wait()


def read_results(path: Path) -> dict[Key, dict[str, Any]]:
    """Read the newest result of each architecture and way; a last line that is incomplete is left out."""
    found: dict[Key, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                result = json.loads(line)
                found[result["library"], result["name"], result["way"]] = result
    return found


def write_results(path: Path, results: Mapping[Key, Mapping[str, Any]]) -> None:
    """Write one line for each architecture and way, in the order of their names."""
    new = path.with_suffix(".new")
    new.write_text("".join(_line(results[key]) for key in sorted(results)), encoding="utf-8")
    new.replace(path)


def _line(result: Mapping[str, Any]) -> str:
    """A line of the results; tracebacks are in the logs."""
    kept = {name: value for name, value in result.items() if name != "trace"}
    return json.dumps({**kept, "reason": page.without_folders(kept["reason"])}) + "\n"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser("python -m benchmarks.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="patterns of names, such as 'bert*'; all by default")
    parser.add_argument("--library", action="append", choices=ALL_LIBRARIES, help="all by default")
    parser.add_argument("--every", type=int, default=1, help="run only every N-th architecture")
    parser.add_argument(
        "--way",
        action="append",
        choices=(*WAYS, VALIDATE),
        help=f"how to train; all but {VALIDATE} by default, which trains nothing",
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit-s", type=float, default=300.0, help="seconds for one architecture")
    parser.add_argument(
        "--again", default="", help="statuses that are run again, such as refused,crashed or all"
    )
    parser.add_argument("--fresh", action="store_true", help="forget all results first")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="docs/reference/models.jsonl by default"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="docs/reference/models.md by default")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    options = parser.parse_args()
    again = set(STATUSES) if options.again == "all" else set(options.again.split(",")) - {""}
    if unknown := again - set(STATUSES):
        parser.error(
            f"no status {', '.join(sorted(unknown))}; expected some of {', '.join(STATUSES)}, or all"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run(parser, options, again)
    except KeyboardInterrupt:  # libraries that are being imported are interrupted too
        print("stopped; the same command continues, without --fresh", file=sys.stderr)
        sys.exit(130)


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace, again: Collection[str]) -> None:
    """Run what has no result, and write the page in every case."""
    wanted = requests(options.library or ALL_LIBRARIES, options.names, options.every, options.way or WAYS)
    if not wanted:
        parser.error(f"no architecture is called {' or '.join(options.names)}; --list prints all names")
    if options.list:
        print("\n".join(f"{request.library} {request.name} {request.way}" for request in wanted))
        return
    if options.fresh:
        options.results.unlink(missing_ok=True)
    known = read_results(options.results)
    waiting = [r for r in wanted if r.key not in known or known[r.key]["status"] in again or options.names]
    print(f"{len(waiting)} to run; results of {len(wanted) - len(waiting)} are kept in {options.results}")
    totals = {library: len(models_of(library).names()) for library in ALL_LIBRARIES}
    try:
        Pool(waiting, options.processes, options.limit_s, options.results).run()
    finally:
        results = read_results(options.results)
        if results:
            write_results(options.results, results)
            options.page.write_text(page.text(list(results.values()), totals), encoding="utf-8")


if __name__ == "__main__":
    main()
