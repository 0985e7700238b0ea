"""A pool of two CS systems, each in a separate process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cs_system.address import SystemAddress, parse_address, parse_addresses
from cs_system.client import Reservation, SystemClient
from cs_system.client.pool import Requirements, SystemPool
from cs_system.errors import BadAddressError, CsSystemError, SystemBusyError, SystemUnreachableError
from cs_system.messages import InputIdentity
from cs_toolkit.fabric import load_fabric
from tests.processes import wait_until
from tests.systems import running_system
from tests.unit.cs_system.conftest import Program
from tests.unit.cs_system.test_operator_commands import Source

FABRIC = load_fabric("cs2").model_dump(mode="json")
NEEDS = Requirements(FABRIC, 1, "pipelined")
IDENTITY = InputIdentity(1, {"program": "linear"})
NOBODY = SystemAddress("127.0.0.1", 1)


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SystemAddress, ...]]:
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp("system") for _ in range(2)]
        running = [stack.enter_context(running_system(folder, ["--threads=1"])) for folder in folders]
        yield tuple(parse_address(system.address) for system in running)


@pytest.fixture
def holder(systems: tuple[SystemAddress, ...]) -> Iterator[dict[SystemAddress, Reservation]]:
    """Both systems, held by jobs."""
    with ExitStack() as stack:
        clients = [stack.enter_context(SystemClient(address)) for address in systems]
        held = {client.address: client.reserve(f"job-{client.address.port}", "token") for client in clients}
        yield held
        for reservation in held.values():
            reservation.close()


def states(systems: tuple[SystemAddress, ...]) -> list[tuple[str | None, int]]:
    """The job and the length of the queue of each system."""
    return [
        (None if info.run is None else info.run.job, info.waiting_jobs)
        for info in SystemPool(systems).statuses()
    ]


def wait_for_idle(systems: tuple[SystemAddress, ...]) -> None:
    deadline = time.monotonic() + 10
    while (found := states(systems)) != [(None, 0)] * len(systems):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_addresses_are_separated_by_commas():
    assert parse_addresses("a:1, b") == (SystemAddress("a", 1), SystemAddress("b"))
    # Programs of the original append a port to whatever they are given.
    assert parse_addresses("a:1,b:2:9000") == (SystemAddress("a", 1), SystemAddress("b", 2))
    assert parse_addresses("a,a:9000") == (SystemAddress("a"),)
    with pytest.raises(BadAddressError, match="empty"):
        parse_addresses("a,,b")


def test_jobs_that_start_together_get_different_systems(systems):
    pool = [SystemPool(systems) for _ in range(2)]
    both_hold = threading.Barrier(2, timeout=30)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with pool[number].reserve(f"job-{number}", "token", NEEDS, wait=False) as (_, reservation):
                both_hold.wait()
                reservation.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {one.chosen for one in pool} == set(systems)
    wait_for_idle(systems)


def test_a_job_that_does_not_wait_learns_who_holds_each_system(systems, holder):
    pool = SystemPool(systems)
    with pytest.raises(SystemBusyError) as busy, pool.reserve("job-1", "token", NEEDS, wait=False):
        pass
    assert str(busy.value).startswith("all 2 CS systems are busy: ")
    for address in systems:
        assert f"{address} is held by job-{address.port} since" in str(busy.value)
    assert states(systems) == [(f"job-{address.port}", 0) for address in systems]


@pytest.mark.parametrize("first", [0, 1])
def test_a_waiting_job_takes_the_system_that_becomes_free_first(systems, holder, first):
    texts: list[str] = []

    def on_wait(text: str) -> None:
        texts.append(text)
        if all(f"{address}: held by" in text for address in systems):
            holder[systems[first]].close()

    pool = SystemPool(systems)
    with pool.reserve("job-1", "token", NEEDS, wait=True, on_wait=on_wait) as (client, reservation):
        assert client.address == pool.chosen == systems[first]
        expected: list[tuple[str | None, int]] = [(f"job-{address.port}", 0) for address in systems]
        expected[first] = ("job-1", 0)
        # It has left the queue of the other system.
        assert states(systems) == expected
        reservation.close()
    assert texts[0].startswith("waiting for the first free one of 2 CS systems: ")


def test_a_system_whose_mode_changes_while_the_job_waits_is_skipped(systems, holder, caplog):
    def on_wait(text: str) -> None:
        if "of 2 CS systems" in text and text.count("place 1 in the queue") == 2:
            admin.set_admission(modes=("weight_streaming",))
            holder[systems[0]].close()
        elif "of 1 CS systems" in text:
            holder[systems[1]].close()

    with SystemClient(systems[0]) as admin:
        try:
            pool = SystemPool(systems)
            with pool.reserve("job-1", "token", NEEDS, wait=True, on_wait=on_wait) as (client, _):
                assert client.address == systems[1]
                assert states(systems) == [(None, 0), ("job-1", 0)]
        finally:
            admin.set_admission(modes=("pipelined", "weight_streaming"))
    assert f"{systems[0]}: the job can no longer run there: its mode is weight_streaming" in caplog.text
    wait_for_idle(systems)


def test_systems_that_become_free_together_are_not_both_taken(systems, holder):
    def on_wait(text: str) -> None:
        threads = [threading.Thread(target=holder[address].close) for address in systems]
        if all(f"{address}: held by" in text for address in systems):
            for thread in threads:
                thread.start()

    with SystemPool(systems).reserve("job-1", "token", NEEDS, wait=True, on_wait=on_wait) as (_, mine):
        expected = sorted([("job-1", 0), (None, 0)], key=str)
        wait_until(lambda: sorted(states(systems), key=str) == expected, lambda: states(systems))
        mine.close()
    wait_for_idle(systems)


def test_systems_that_do_not_fit_are_skipped_with_the_reason(systems, caplog):
    pool = SystemPool((NOBODY, *systems))
    with SystemClient(systems[0]) as admin:
        admin.set_admission(drained=True)
        try:
            with pool.reserve("job-1", "token", NEEDS, wait=True) as (client, reservation):
                assert client.address == systems[1]
                reservation.close()
        finally:
            admin.set_admission(drained=False)
    assert f"skipping the CS system at {NOBODY}: no CS system answers" in caplog.text
    assert f"skipping the CS system at {systems[0]}: it is drained" in caplog.text


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        (Requirements({**FABRIC, "width": 7}, 1, "pipelined"), "its fabric cs2 is another one"),
        (Requirements(FABRIC, 4, "weight_streaming"), "it has 1 wafer"),
    ],
)
def test_a_job_for_which_no_system_fits_is_refused_with_all_reasons(systems, needs, reason):
    with (
        pytest.raises(SystemUnreachableError) as refused,
        SystemPool(systems).reserve("job-1", "token", needs, wait=True),
    ):
        pass
    assert str(refused.value).count(reason) == 2


def test_without_any_answer_the_error_is_that_of_a_system():
    with pytest.raises(SystemUnreachableError, match=r"no CS system answers at 127\.0\.0\.1:1"):
        SystemPool((NOBODY, SystemAddress("127.0.0.1", 2))).statuses()


def test_workers_find_the_run_of_their_job(systems, program: Program, tmp_path: Path):
    found: list[object] = []
    texts: list[str] = []

    def join() -> None:
        worker = SystemPool((NOBODY, *systems))
        try:
            found.append(worker.join_run("job-1", "token", 60.0, IDENTITY, "worker 0", texts.append))
        except CsSystemError as error:
            found.append(error)
        found.append(worker.chosen)

    thread = threading.Thread(target=join)
    thread.start()
    while not texts:
        time.sleep(0.1)
    assert texts[0].endswith("it has asked none of the 3 systems")
    with SystemPool(systems[1:]).reserve("job-1", "token", NEEDS, wait=False) as (client, reservation):
        reservation.load(Source(program))
        reservation.program()
        reservation.put_state(program.state())
        reservation.open_input(1, IDENTITY, 0)
        thread.join(30)
        ticket, chosen = found
        assert chosen == client.address == systems[1]
        assert f"127.0.0.1:{ticket.data_port}" == client.info().data_address
        # The refusal of the system that has the run is not hidden by the waits for the others.
        other = SystemPool(systems)
        with pytest.raises(CsSystemError, match="token is not that of job job-1"):
            other.join_run("job-1", "another", 60.0, IDENTITY, "worker 0", texts.append)
        reservation.close()
