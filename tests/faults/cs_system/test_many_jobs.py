"""Many jobs on one system leave nothing: no descriptor, mapping, file or memory of an earlier job."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from cs_stream.batches import BatchLayout
from cs_system.client import SystemClient, parse_address
from cs_toolkit.execution_options import SystemShare
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


@pytest.mark.skipif(not _SHM.is_dir(), reason="needs a file system that nothing else fills")
@pytest.mark.parametrize("serves_memoryx", [False, True], ids=["own MemoryX", "standing MemoryX"])
@pytest.mark.parametrize("rounds", [3, pytest.param(7, marks=pytest.mark.soak)])
def test_jobs_leave_nothing(
    rounds: int, serves_memoryx: bool, steps: Streamed, linear, helpers, tmp_path: Path
) -> None:
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

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_SHM, prefix="memoryx-")))
        flags, pids = [f"--memoryx-dir={directory}", "--num-csx=2"], []
        if serves_memoryx:
            memoryx, (host, port, _) = stack.enter_context(running_memoryx(directory))
            flags.append(f"--memoryx={host}:{port}")
            pids.append(memoryx.pid)
        system = stack.enter_context(running_system(tmp_path, flags))
        pids.append(system.process.pid)
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
