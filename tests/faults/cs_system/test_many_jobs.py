"""Many jobs on one system leave nothing: no descriptor, mapping, file or memory of an earlier job."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from cs_stream.batches import BatchLayout
from cs_system.client import SystemClient, parse_address
from cs_toolkit.execution_options import SystemShare
from cs_toolkit.security.identity import CERTS_VARIABLE
from tests.certificates import SiteCertificates
from tests.processes import wait_until
from tests.systems import RunningSystem, descendants_of, running_system
from tests.unit.cs_system.memoryx.streamed_steps import Streamed, running_memoryx, wide_network

_SHM = Path("/dev/shm")
_KINDS = ("one wafer", "two wafers", "pipelined")


@dataclass(frozen=True)
class Figures:
    """The resources of some processes.

    Attributes:
        processes: Their number.
        descriptors: Open descriptors.
        mappings: Lines of /proc/PID/maps.
        files: Number of descriptors and mappings of files of MemoryX.
        bytes: Their proportional share of memory.
        used_bytes: Used bytes of the file system of MemoryX.
    """

    processes: int
    descriptors: int
    mappings: int
    files: int
    bytes: int
    used_bytes: int


def _figures(pids: Sequence[int], directory: Path) -> Figures:
    maps, links, size, processes = [], [], 0, 0
    for root in pids:
        for pid in (root, *descendants_of(root)):
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
                if not lines:  # a zombie
                    continue
                processes += 1
                maps += lines
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                size += int(rollup.partition("Pss:")[2].split()[0]) << 10
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        links.append(str(link.readlink()))
    files = sum(str(directory) in text for text in (*maps, *links))
    status = os.statvfs(directory)
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    return Figures(processes, len(links), len(maps), files, size, used)


def _settled(pids: Sequence[int], directory: Path) -> Figures:
    """Return the figures when they no longer change: a spare process starts after a job."""
    found: list[Figures] = []

    def is_settled() -> bool:
        time.sleep(1.0)
        found.append(_figures(pids, directory))
        last = found[-4:]
        return len(last) == 4 and max(f.bytes for f in last) - min(f.bytes for f in last) < 1 << 20

    wait_until(is_settled, lambda: found[-4:])
    return found[-1]


class StepSource:
    """A step in layers, as a client loads it."""

    def __init__(self, steps: Streamed) -> None:
        self._data = steps.data
        executables = (
            replace(executable, sha256=hashlib.sha256(steps.data[executable.name]).hexdigest())
            for executable in steps.compiled.executables
        )
        self.step = replace(steps.compiled, executables=tuple(executables))

    def executable_bytes(self, name: str) -> bytes:
        return self._data[name]


@pytest.fixture(scope="module")
def steps() -> Streamed:
    return wide_network()


def make_jobs(steps: Streamed, linear, helpers) -> Callable[[RunningSystem, str, str], None]:
    """Return a function that runs a job of a kind, with a name, on a system."""
    source = StepSource(steps)
    streamed_batches = [tuple(np.asarray(array, np.float32) for array in batch) for batch in steps.batches]

    def run_job(system: RunningSystem, kind: str, name: str) -> None:
        address = system.address
        pipelined = kind == "pipelined"
        program = linear.artifact if pipelined else source
        workers = helpers.Workers(address, name, BatchLayout.of_step(program.step.interface.inputs))
        with SystemClient(parse_address(address)) as client, client.reserve(name, helpers.token) as held:
            held.load(program, SystemShare(wafers=2 if kind == "two wafers" else 1))
            held.program()
            held.put_state(linear.state() if pipelined else steps.state)
            held.open_input(1, helpers.identity, 0)
            count = len(streamed_batches)
            batches = linear.batches(0, 1, count) if pipelined else lambda skip: iter(streamed_batches[skip:])
            workers.start([batches])
            assert sum(part.count for part in held.run_steps(count)) == count
            held.fetch_state()
        workers.join()
        assert workers.errors == {}
        helpers.wait_for_state(system, "IDLE")

    return run_job


def start_services(
    stack: ExitStack, directory: Path, folder: Path, serves_memoryx: bool, more_flags: Sequence[str] = ()
) -> tuple[RunningSystem, list[int]]:
    """Return a system that stores weights in a directory, and the processes: its own, perhaps a MemoryX."""
    flags, pids = [f"--memoryx-dir={directory}", "--num-csx=2", *more_flags], []
    if serves_memoryx:
        memoryx, (host, port, _) = stack.enter_context(running_memoryx(directory))
        flags.append(f"--memoryx={host}:{port}")
        pids.append(memoryx.pid)
    system = stack.enter_context(running_system(folder, flags))
    return system, [*pids, system.process.pid]


@pytest.mark.skipif(not _SHM.is_dir(), reason="needs a file system that nothing else fills")
@pytest.mark.parametrize("serves_memoryx", [False, True], ids=["own MemoryX", "standing MemoryX"])
@pytest.mark.parametrize("rounds", [3, pytest.param(7, marks=pytest.mark.soak)])
def test_jobs_leave_nothing(
    rounds: int, serves_memoryx: bool, steps: Streamed, linear, helpers, tmp_path: Path
) -> None:
    run_job = make_jobs(steps, linear, helpers)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_SHM, prefix="memoryx-")))
        system, pids = start_services(stack, directory, tmp_path, serves_memoryx)
        first: Figures | None = None
        for number in range(rounds):
            for kind in _KINDS:
                run_job(system, kind, f"job-{number}-{kind.replace(' ', '-')}")
                wait_until(lambda: _figures(pids, directory).files == 0, lambda: _figures(pids, directory))
            if first is None:
                first = _settled(pids, directory)

        def is_flat() -> bool:
            last = _figures(pids, directory)
            return (
                last.processes <= first.processes
                and last.descriptors <= first.descriptors
                # Python and XLA allocate memory in mappings whose number varies a little.
                and last.mappings <= first.mappings + 20
                and last.bytes <= first.bytes + (16 << 20)
                and last.used_bytes <= first.used_bytes + (1 << 20)
            )

        # The last job's parts may be ending.
        wait_until(is_flat, lambda: (first, _figures(pids, directory)), 20.0)


# Counts the objects in which this process looks for garbage when it gets a signal.
_COUNT_OBJECTS = """
import gc, os, signal, sys
from pathlib import Path

def write(*_):
    file = Path(os.environ["OBJECTS_FILE"])
    file.with_suffix(".new").write_text(str(len(gc.get_objects())))
    file.with_suffix(".new").rename(file)

if "serve" in sys.orig_argv:
    signal.signal(signal.SIGUSR2, write)
"""


def test_the_garbage_of_calls_is_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call leaves some objects of gRPC in reference cycles."""
    (tmp_path / "sitecustomize.py").write_text(_COUNT_OBJECTS)
    objects = tmp_path / "objects"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OBJECTS_FILE", str(objects))

    def count_objects(system: RunningSystem) -> int:
        objects.unlink(missing_ok=True)
        system.process.send_signal(signal.SIGUSR2)
        wait_until(objects.exists)
        return int(objects.read_text())

    with running_system(tmp_path) as system, SystemClient(parse_address(system.address)) as client:
        client.info()
        before = count_objects(system)
        for _ in range(1000):
            client.info()
        assert count_objects(system) < before + 3000


def test_the_cache_of_compiled_programs_stays_below_its_limit(
    steps: Streamed, linear, helpers, tmp_path: Path
) -> None:
    """A program that is compiled while the system runs displaces the oldest ones."""
    run_job = make_jobs(steps, linear, helpers)
    cache = tmp_path / "cache"
    with running_system(tmp_path, [f"--cache-dir={cache}", "--cache-size=1"]) as system:
        (directory,) = (cache / "xla").iterdir()
        old = directory / "old-cache"
        with old.open("wb") as file:
            file.truncate(1 << 20)
        os.utime(old, (0, 0))
        run_job(system, "pipelined", "job")
        wait_until(lambda: not old.exists())
        assert 0 < sum(path.stat().st_size for path in directory.iterdir()) <= 1 << 20


# What a job may add to a figure of a process in the second half of the time. Records of jobs have limits,
# some of which half an hour does not reach: the nonces of two clients are 0.4 KB. The arenas of malloc and
# Python's lists of free objects still grow a little: 1.7 KB a job in 1,068 jobs (before: 51 KB).
_LIMITS_OF_JOB = {"bytes": 8 << 10, "descriptors": 0.0, "mappings": 0.05, "threads": 0.0}


def _lasting_figures(pids: Sequence[int]) -> dict[tuple[int, str], int]:
    """Return the figures of `_LIMITS_OF_JOB` of processes and their children."""
    found = {}
    for root in pids:
        for pid in (root, *descendants_of(root)):
            with suppress(OSError):
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                # Not its proportional share, which rises when pages are no longer shared with a child.
                found[pid, "bytes"] = int(rollup.partition("Anonymous:")[2].split()[0]) << 10
                found[pid, "descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                found[pid, "mappings"] = len(Path(f"/proc/{pid}/maps").read_text().splitlines())
                found[pid, "threads"] = len(list(Path(f"/proc/{pid}/task").iterdir()))
    return found


def _growth(values: Sequence[int]) -> float:
    """Return by how much values rise from one to the next, 0 unless they rise all the time.

    Of distant pairs nearly all rise then. A step, such as another arena of an allocator, raises seven eighths
    of the pairs in the worst case.
    """
    distance = max(1, len(values) // 3)
    pairs = [(i, j) for i in range(len(values)) for j in range(i + distance, len(values))]
    rates = [(values[j] - values[i]) / (j - i) for i, j in pairs]
    rises_always = sum(rate > 0 for rate in rates) > 0.95 * len(rates)
    return float(np.median(rates)) if rises_always else 0.0


def test_what_counts_as_growth() -> None:
    noise = [int(value) for value in np.random.default_rng(1).integers(0, 1000, 300)]
    assert _growth(noise) == 0
    assert _growth([value + 5000 * (i > 150) for i, value in enumerate(noise)]) == 0
    assert _growth([value + 20 * i for i, value in enumerate(noise)]) == pytest.approx(20, abs=1)
    assert _growth([7] * 300) == 0
    assert _growth([7 + i // 10 for i in range(300)]) == pytest.approx(0.1, abs=0.01)


@contextmanager
def _observed(page: str) -> Iterator[None]:
    """Show a status page and read its metrics during the body."""
    stop = threading.Event()

    def show() -> None:
        with urllib.request.urlopen(f"{page}events") as events:
            while not stop.is_set():
                events.readline()

    def read() -> None:
        while not stop.wait(1.0):
            for path in ("metrics", "status.json", ""):
                urllib.request.urlopen(page + path).read()

    threads = [threading.Thread(target=body, daemon=True) for body in (show, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
def test_resources_stay_flat(steps: Streamed, linear, helpers, tmp_path: Path, capsys) -> None:
    """Jobs of all kinds, for SOAK_MINUTES and at least 600 jobs: no figure of a lasting process rises.

    With TLS, and while a status page is open and the metrics are read.
    """
    run_job = make_jobs(steps, linear, helpers)
    deadline_s = time.monotonic() + 60 * float(os.environ.get("SOAK_MINUTES", "30"))
    directory, temporary = tmp_path / "memoryx", tmp_path / "tmp"
    for folder in (directory, temporary):
        folder.mkdir()
    certificates = SiteCertificates(tmp_path)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        flags = [f"--certs={certificates.system.directory}", "--http-port=0"]
        system, pids = start_services(stack, directory, tmp_path, True, flags)
        patch.setenv(CERTS_VARIABLE, str(certificates.user.directory))
        run_job(system, "pipelined", "first")
        settled = _settled(pids, directory)
        samples: list[dict[tuple[int, str], int]] = []
        with _observed(system.status_page):
            while time.monotonic() < deadline_s or len(samples) < 200:
                for kind in _KINDS:
                    run_job(system, kind, f"job-{len(samples)}-{kind.replace(' ', '-')}")
                samples.append(_lasting_figures(pids))
        lasting = [key for key in samples[0] if all(key in sample for sample in samples)]
        assert {pid for pid, _ in lasting} >= set(pids)
        begin = len(samples) // 2  # allocators reach their size within some hundred jobs
        growth = {key: _growth([sample[key] for sample in samples[begin:]]) / len(_KINDS) for key in lasting}
        with capsys.disabled():
            print(f"\n{len(_KINDS) * len(samples)} jobs; medians of eighths of the time, and growth in a job")
            for pid, figure in lasting:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                values = [sample[pid, figure] for sample in samples]
                parts = [int(np.median(part)) for part in np.array_split(values, 8)]
                print(f"{name} {pid}: {figure} {parts} {growth[pid, figure]:.3g}")
        rising = {key: rate for key, rate in growth.items() if rate > _LIMITS_OF_JOB[key[1]]}
        assert not rising, {key: (rate, [sample[key] for sample in samples]) for key, rate in rising.items()}
        last = _settled(pids, directory)
        assert (last.processes, last.files) == (settled.processes, settled.files)
        assert not [path for folder in (directory, temporary) for path in folder.rglob("*") if path.is_file()]
