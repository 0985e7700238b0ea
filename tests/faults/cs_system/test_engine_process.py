"""The process that computes a job: its crash ends the job, and nothing else."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from cs_system import processes
from cs_system.client import SystemClient, parse_address, this_user
from cs_system.errors import EngineLostError, ProgramError, ReservationLostError
from cs_system.memoryx.config import MemoryxConfig
from cs_system.server.engine_process import EnginePool, RemoteEngine
from tests.processes import is_running, wait_until
from tests.systems import descendants_of


def engines_of(system) -> list[int]:
    """The running processes of engines of a system, the spare one among them."""
    found = []
    for pid in descendants_of(system.process.pid):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if name == "cs_engine" and is_running(pid):
            found.append(pid)
    return found


def run_a_job(client, system, linear, helpers, name: str) -> None:
    workers = helpers.Workers(system.address, name, linear.layout)
    with client.reserve(name, helpers.token) as held:
        held.load(linear.artifact)
        held.program()
        held.put_state(linear.state())
        held.open_input(1, helpers.identity, 0)
        workers.start([linear.batches(0, 1, 5)])
        assert sum(part.count for part in held.run_steps(5)) == 5
    workers.join()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGSEGV, r"was ended by SIGSEGV \(Segmentation fault\); the log of the CS system"),
        (
            signal.SIGABRT,
            r"was ended by SIGABRT \(Aborted\) \(libraries do this when they get no more memory",
        ),
        (
            signal.SIGKILL,
            r"was ended by SIGKILL \(Killed\) \(the kernel does this when the machine or its cgroup is out",
        ),
    ],
)
def test_a_crash_in_the_steps_ends_the_job_and_not_the_system(
    loaded, workers, linear, helpers, system, number, text
):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(w, 2) for w in range(2)])
    stream = loaded.run_steps(10**9)
    next(stream)
    (engine,) = engines_of(system)
    os.kill(engine, number)
    with pytest.raises(EngineLostError, match=f"running the steps failed: the process .* {text}"):
        list(stream)
    # The state is lost, and this is said again.
    with pytest.raises(
        EngineLostError, match="start the job again: training resumes from its last checkpoint"
    ):
        loaded.fetch_state()
    # A program that is loaded afterwards gets a new process.
    loaded.load(linear.artifact)
    loaded.program()
    loaded.close()
    assert system.process.poll() is None


def test_a_crash_while_programming_names_it(reservation, linear, system):
    reservation.load(linear.artifact)
    wait_until(lambda: len(engines_of(system)) == 1)
    (engine,) = engines_of(system)
    os.kill(engine, signal.SIGSEGV)
    with pytest.raises(EngineLostError, match=r"programming failed: .* SIGSEGV"):
        reservation.program()


def test_a_release_while_programming_gives_its_reason(reservation, linear, system, helpers):
    reservation.load(linear.artifact)
    wait_until(lambda: len(engines_of(system)) == 1)
    (engine,) = engines_of(system)
    os.kill(engine, signal.SIGSTOP)  # killed after some seconds, as a program that does not end
    with ThreadPoolExecutor(1) as thread, SystemClient(parse_address(system.address)) as other:
        programmed = thread.submit(reservation.program)
        helpers.wait_for_state(system, "PROGRAMMING")
        other.release("job")
        with pytest.raises(ReservationLostError, match=f"has ended: released by {this_user()}"):
            programmed.result()


def test_a_spare_process_that_has_not_started_is_not_waited_for(monkeypatch):
    """The fork server imports JAX first, for longer than an idle system may take to end."""
    inherited = []

    def fork_later(request, descriptors, may_fork):
        inherited.extend(map(os.dup, descriptors))

    monkeypatch.setattr(processes._fork_server, "fork", fork_later)
    pool = EnginePool(1, None)
    pool.prepare()
    pool.close()
    lifeline = inherited[0]
    assert os.read(lifeline, 1) == b"", "it would end as soon as it starts"
    for descriptor in inherited:
        os.close(descriptor)


def test_a_process_that_cannot_be_started_is_named_and_the_next_one_is_taken(linear, monkeypatch):
    pool, fork = EnginePool(1, None), processes._fork_server.fork

    def no_more(*_):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def load():
        data = {executable.name: b"" for executable in linear.artifact.step.executables}
        return RemoteEngine(pool.take(), linear.artifact.step, data, 1, MemoryxConfig())

    monkeypatch.setattr(processes._fork_server, "fork", no_more)
    pool.prepare()
    with pytest.raises(EngineLostError, match=r"cannot start the process .*\(Resource temporarily unavail"):
        load().program()
    monkeypatch.setattr(processes._fork_server, "fork", fork)
    pool.take().end()
    pool.close()


def test_a_crash_of_the_spare_process_is_no_fault(client, system, linear, helpers):
    wait_until(lambda: len(engines_of(system)) == 1)
    (spare,) = engines_of(system)
    os.kill(spare, signal.SIGKILL)
    # With its last thread it closes its files, by which the system notices: the first may end before.
    threads = Path(f"/proc/{spare}/task")
    wait_until(lambda: not is_running(spare) and (not threads.exists() or len(list(threads.iterdir())) == 1))
    run_a_job(client, system, linear, helpers, "after-a-crash")


def test_the_process_ends_with_its_job(client, system, linear, helpers):
    run_a_job(client, system, linear, helpers, "first")
    helpers.wait_for_state(system, "IDLE")
    wait_until(lambda: len(engines_of(system)) == 1)
    before = engines_of(system)
    run_a_job(client, system, linear, helpers, "second")
    helpers.wait_for_state(system, "IDLE")
    wait_until(lambda: len(engines_of(system)) == 1)
    assert engines_of(system) != before


def test_the_process_of_the_system_imports_no_jax(client, system, linear, helpers):
    run_a_job(client, system, linear, helpers, "any")
    maps = Path(f"/proc/{system.process.pid}/maps").read_text()
    assert "jaxlib" not in maps
    assert "numpy" in maps


@pytest.mark.parametrize("kind", ["random", "cut", "flipped"])
@pytest.mark.parametrize("count", [6, pytest.param(100, marks=pytest.mark.soak)])
def test_damaged_executables_end_in_errors(client, system, linear, helpers, kind, count):
    data, numbers = linear.artifact.executable_bytes("step"), random.Random(kind)

    def damaged() -> bytes:
        if kind == "random":
            return numbers.randbytes(numbers.randrange(1, 5000))
        if kind == "cut":
            return data[: numbers.randrange(len(data))]
        flipped = bytearray(data)
        flipped[numbers.randrange(len(data))] ^= 1 << numbers.randrange(8)
        return bytes(flipped)

    with client.reserve("damaged", helpers.token) as held:
        for _ in itertools.repeat(None, count):
            held.load(helpers.made(linear.artifact.step, {"step": damaged()}))
            with suppress(ProgramError, EngineLostError):
                held.program()  # a flipped constant is another program
    assert system.process.poll() is None
    run_a_job(client, system, linear, helpers, "next")
