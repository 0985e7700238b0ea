"""Peers that are stopped for a while: reported while they are silent, lost only after the peer timeout."""

import os
import re
import signal
import threading
import time

import pytest

from cs_system.client import SystemClient, join_run, parse_address
from cs_system.errors import ConnectionLostError, ReservationLostError
from cs_toolkit.network.liveness import PEER_TIMEOUT_VARIABLE
from tests.systems import running_system

TIMEOUT_S = 3.0
STOP_S = 2.0


@pytest.fixture(autouse=True)
def _short_timeout(monkeypatch):
    monkeypatch.setenv(PEER_TIMEOUT_VARIABLE, f"{TIMEOUT_S:g}")


@pytest.fixture
def silent_system(tmp_path, monkeypatch):
    """A system that the test may stop; it waits for its peers as long as this process does."""
    with running_system(tmp_path, ["--threads=1", f"--peer-timeout-s={TIMEOUT_S:g}"]) as system:
        yield system


def stop(pid, seconds):
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("during", ["steps", "idle"])
def test_a_system_that_is_stopped_for_less_than_the_timeout_continues(
    silent_system, linear, helpers, caplog, during
):
    caplog.set_level("INFO", "cs_system.client")
    with (
        SystemClient(parse_address(silent_system.address)) as client,
        client.reserve("job", helpers.token) as reservation,
    ):
        reservation.load(linear.artifact)
        reservation.program()
        reservation.put_state(linear.state())
        reservation.open_input(1, helpers.identity, 0)
        workers = helpers.Workers(silent_system.address, "job", linear.layout)
        workers.start([linear.batches(0, 1)])
        steps = reservation.run_steps(10**9)
        first = next(steps)
        if during == "idle":
            steps.close()
        stop(silent_system.process.pid, STOP_S)
        helpers.wait_until(lambda: "answers again" in caplog.text)
        if during == "steps":
            assert next(steps).first_step == first.first_step + first.count
        steps.close()
        assert reservation.fetch_state(["state.global_step"])["state.global_step"] > 0
    workers.join()
    assert workers.errors == {}
    assert workers.summaries[0].reconnects == 0
    lines = re.findall(
        rf"the CS system at \S+ has not answered for (\d) s; it counts as lost after {TIMEOUT_S:g} s",
        caplog.text,
    )
    assert lines[0] == "1"


def test_a_system_that_is_stopped_for_longer_is_lost(silent_system, helpers):
    with SystemClient(parse_address(silent_system.address)) as client:
        reservation = client.reserve("job", helpers.token)
        began_s = time.monotonic()
        os.kill(silent_system.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectionLostError, match=r"broke \(it has not answered for [2-9] s\)"):
                reservation.fetch_state()
        finally:
            os.kill(silent_system.process.pid, signal.SIGCONT)
        assert time.monotonic() - began_s > TIMEOUT_S / 2


def test_a_worker_that_waits_for_its_chief_survives_a_stopped_system(silent_system, helpers, linear, caplog):
    caplog.set_level("INFO", "cs_system.client")
    tickets = []
    with (
        SystemClient(parse_address(silent_system.address)) as client,
        client.reserve("job", helpers.token) as reservation,
    ):
        address = parse_address(silent_system.address)
        thread = threading.Thread(
            target=lambda: tickets.append(join_run(address, "job", helpers.token, 60.0)), daemon=True
        )
        thread.start()
        helpers.wait_until(lambda: "waits" in silent_system.log())
        stop(silent_system.process.pid, STOP_S)
        reservation.load(linear.artifact)
        reservation.open_input(1, helpers.identity, 0)
        thread.join(20)
    assert len(tickets) == 1


def test_a_chief_that_is_stopped_for_less_than_the_timeout_keeps_the_system(
    silent_system, silent_chief, linear, helpers
):
    workers = helpers.Workers(silent_system.address, "job", linear.layout)
    workers.start([linear.batches(w, 2) for w in range(2)])
    chief = silent_chief("step", linear.artifact.path)
    stop(chief.pid, STOP_S)
    helpers.wait_until(lambda: "the chief answers again" in silent_system.log())
    # The lines before the stop may still be in the pipe.
    for _ in range(100):
        assert chief.stdout.readline().startswith("step")
    warning = rf"job  the chief of job job has not answered for 1 s; it counts as lost after {TIMEOUT_S:g} s"
    assert re.search(warning, silent_system.log())
    chief.kill()
    workers.join()


def test_a_chief_that_is_stopped_for_longer_loses_the_system(silent_system, silent_chief, helpers):
    chief = silent_chief("reserved")
    chief.send_signal(signal.SIGSTOP)
    assert helpers.wait_for_state(silent_system, "IDLE") > TIMEOUT_S / 2
    assert re.search(r"the system is free: its chief has not answered for [2-5] s", silent_system.log())


def test_a_chief_and_a_system_that_are_stopped_together_continue(
    silent_system, silent_chief, linear, helpers
):
    """A virtual machine with both is suspended for longer than the timeout."""
    chief = silent_chief("reserved")
    pids = (silent_system.process.pid, chief.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(TIMEOUT_S + STOP_S)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    assert helpers.state_of(silent_system) == "RESERVED", silent_system.log()
    # On a busy machine the chief may need a second until it answers again.
    assert not re.search(r"has not answered for [3-9] s", silent_system.log())


def test_an_idle_chief_loses_the_system(tmp_path, helpers, caplog):
    with (
        running_system(tmp_path, ["--threads=1", "--idle-release-s=2"]) as system,
        SystemClient(parse_address(system.address)) as client,
    ):
        reservation = client.reserve("lazy", helpers.token)
        with reservation.activity("compiling"):
            time.sleep(4.0)
            run = client.info().run
            assert (run.job, run.activity) == ("lazy", "compiling")
        helpers.wait_for_state(system, "IDLE", 20)
        expected = r"the reservation of the CS system has ended: its chief has not used it for \d s"
        with pytest.raises(ReservationLostError, match=expected):
            reservation.fetch_state()
        helpers.wait_until(lambda: re.search(expected, caplog.text))
        assert re.search(r"lazy  the system is free: its chief has not used it for \d s", system.log())


def test_a_chief_whose_calls_have_stalled_loses_the_system(tmp_path, helpers):
    with (
        running_system(tmp_path, ["--threads=1", "--peer-timeout-s=1"]) as system,
        SystemClient(parse_address(system.address)) as client,
    ):
        reservation = client.reserve("job", helpers.token)
        # Pings are answered from now on, heartbeats are not.
        reservation._heartbeats.close()
        helpers.wait_for_state(system, "IDLE", 20)
        expected = r"its chief has not answered for [3-5] s, except for pings"
        with pytest.raises(ReservationLostError, match=f"has ended: {expected}"):
            reservation.fetch_state()
        assert re.search(f"job  the system is free: {expected}", system.log())
