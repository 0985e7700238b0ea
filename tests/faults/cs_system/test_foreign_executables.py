"""Executables that no compiler of ours has made."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cs_system.errors import EngineLostError, MemoryxError, ProgramError
from cs_system.memoryx.client import ShardedMemoryx
from cs_system.memoryx.config import MemoryxConfig, read_memoryx_secret
from cs_system.memoryx.engine import select_executables
from tests.programs.steps.hostile import with_callback, with_endless_loop
from tests.programs.steps.unreadable import Damage, unreadable_executables
from tests.systems import user_cpu_s
from tests.unit.cs_system.memoryx.streamed_steps import Streamed, running_memoryx, stack_of_three

REFUSED = r"is refused: got stablehlo\.custom_call @xla_ffi_python_cpu_callback, expected one of the targets"

UNREADABLE: list[tuple[Damage, str]] = [
    ("hang", r".* has not read an executable within 3 s of CPU time .*; compile again"),
    ("crash", r".* was ended by SIGSEGV .* may be damaged: compile again"),
]


# One function limits the time of every reader, for each of which `hang` takes 3 s of a CPU.
UNREADABLE_BY_MEMORYX = [pytest.param(*UNREADABLE[0], marks=pytest.mark.soak), UNREADABLE[1]]


@pytest.fixture(scope="module")
def steps() -> Streamed:
    return stack_of_three()


def first_memory_function(steps: Streamed) -> str:
    return steps.compiled.executables[next(iter(steps.schedule.memory_calls())).function].name


@pytest.mark.parametrize(("damage", "text"), UNREADABLE, ids=("hang", "crash"))
def test_the_system_survives_an_executable_that_its_reader_does_not(
    client, linear, helpers, system, damage: Damage, text: str
) -> None:
    data = unreadable_executables()[damage]
    with client.reserve("damaged", helpers.token) as held:
        held.load(helpers.made(linear.artifact.step, {"step": data}))
        with pytest.raises(EngineLostError, match=f"programming failed: the process that computes {text}"):
            held.program()
    helpers.wait_for_state(system, "IDLE")
    with client.reserve("next", helpers.token) as held:
        held.load(linear.artifact)
        held.program()


@pytest.mark.parametrize(("damage", "text"), UNREADABLE_BY_MEMORYX, ids=("hang", "crash"))
def test_memoryx_survives_an_executable_that_its_reader_does_not(
    steps: Streamed, tmp_path: Path, damage: Damage, text: str
) -> None:
    data = {**steps.data, first_memory_function(steps): unreadable_executables()[damage]}
    with running_memoryx(tmp_path) as (process, address):
        place = MemoryxConfig((address,), tmp_path)
        damaged = dataclasses.replace(steps, data=data).engine(place)
        try:
            with pytest.raises(MemoryxError, match=f"the process that updates {text}"):
                damaged.put_state(steps.state)
        finally:
            damaged.free()
        engine = steps.engine(place)
        try:
            engine.put_state(steps.state)
        finally:
            engine.free()
        assert process.poll() is None


@pytest.mark.parametrize(("damage", "text"), UNREADABLE_BY_MEMORYX, ids=("hang", "crash"))
def test_a_run_reports_an_executable_that_its_own_memoryx_does_not_survive(
    steps: Streamed, tmp_path: Path, damage: Damage, text: str
) -> None:
    data = {**steps.data, first_memory_function(steps): unreadable_executables()[damage]}
    engine = dataclasses.replace(steps, data=data).engine(MemoryxConfig((), tmp_path))
    try:
        with pytest.raises(MemoryxError, match=f"the process that updates {text}"):
            engine.program()
    finally:
        engine.free()


def test_a_callback_is_refused_by_the_system(reservation, linear, helpers, system):
    data = with_callback(linear.artifact.executable_bytes("step"))
    reservation.load(helpers.made(linear.artifact.step, {"step": data}))
    with pytest.raises(ProgramError, match=f"executable 'step' {REFUSED}"):
        reservation.program()
    reservation.load(linear.artifact)
    reservation.program()
    assert system.process.poll() is None


def test_a_callback_is_refused_by_memoryx(steps: Streamed, tmp_path: Path) -> None:
    calls = list(steps.schedule.memory_calls())
    data = dict(steps.data)
    number = calls[0].function
    name = steps.compiled.executables[number].name
    data[name] = with_callback(data[name])
    with running_memoryx(tmp_path) as (process, address):
        client = ShardedMemoryx(steps.schedule, [address], read_memoryx_secret(None))
        try:
            client.open(select_executables(steps.compiled, data, calls), "token")
            with pytest.raises(ProgramError, match=f"executable 'function {number}' {REFUSED}"):
                client.wait_open()
        finally:
            client.close()
        engine = steps.engine(MemoryxConfig((address,), tmp_path))
        try:
            engine.put_state(steps.state)
        finally:
            engine.free()
        assert process.poll() is None


def test_a_callback_is_refused_by_the_wafer(steps: Streamed, tmp_path: Path) -> None:
    number = next(iter(steps.schedule.calls())).function
    name = steps.compiled.executables[number].name
    data = {**steps.data, name: with_callback(steps.data[name])}
    engine = dataclasses.replace(steps, data=data).engine(MemoryxConfig((), tmp_path))
    try:
        with pytest.raises(ProgramError, match=f"executable 'function {number}' {REFUSED}"):
            engine.program()
    finally:
        engine.free()


def test_a_program_that_never_ends_holds_the_system_no_longer_than_its_job(
    client, system, workers, linear, helpers
):
    data = with_endless_loop(linear.artifact.executable_bytes("step"))
    held = client.reserve("job", helpers.token)
    held.load(helpers.made(linear.artifact.step, {"step": data}))
    held.program()
    held.put_state(linear.state())
    held.open_input(1, helpers.identity, 0)
    workers.start([linear.batches(0, 1)])
    held.wait_workers(20.0)
    steps = held.run_steps(5)
    # The system is RUNNING before its first batch has arrived.
    idle_s = user_cpu_s(system.process.pid)
    helpers.wait_until(lambda: user_cpu_s(system.process.pid) > idle_s + 1.0)
    steps.close()
    held.close("the chief was interrupted")
    helpers.wait_for_state(system, "IDLE")
    assert "run_steps has not ended after 5 s: its processes are killed" in system.log()
    with client.reserve("next", helpers.token) as following:
        following.load(linear.artifact)
        following.program()
