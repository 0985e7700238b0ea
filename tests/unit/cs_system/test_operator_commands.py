"""The commands of users and administrators, against a system in a separate process."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cs_system.client import SystemClient, parse_address, this_user
from cs_system.commands import main
from cs_system.errors import (
    ArtifactRefusedError,
    NoSuchJobError,
    ReservationLostError,
    SystemDrainedError,
)
from cs_toolkit.security.tls import Credentials
from cs_toolkit.step import CompiledStep, Executable
from tests.certificates import SiteCertificates
from tests.systems import RunningSystem, running_system
from tests.unit.cs_system.conftest import Program


@pytest.fixture
def system(tmp_path: Path) -> Iterator[RunningSystem]:
    with state_system(tmp_path) as running:
        yield running


@contextmanager
def state_system(folder: Path) -> Iterator[RunningSystem]:
    with running_system(folder, [f"--state-dir={folder / 'state'}"]) as running:
        yield running


def run(system: RunningSystem, *arguments: str) -> Result:
    return CliRunner().invoke(main, [arguments[0], f"--cs_ip={system.address}", *arguments[1:]])


def text(system: RunningSystem, *arguments: str) -> str:
    done = run(system, *arguments)
    assert done.exit_code == 0, done.output
    return done.output


def client(system: RunningSystem) -> SystemClient:
    return SystemClient(parse_address(system.address))


def test_a_drained_system_takes_no_new_job_and_ends_the_running_one_normally(system):
    with client(system) as first, client(system) as second:
        reservation = first.reserve("job-1", "token")
        assert "job job-1 is still running" in text(system, "drain")
        with pytest.raises(SystemDrainedError, match=f"drained by {this_user()}"):
            second.reserve("job-2", "token", wait=True)
        assert first.info().run is not None
        reservation.close()
        assert first.info().state == "DRAINED"
        assert "drained  by" in text(system, "status")
        text(system, "resume")
        second.reserve("job-2", "token").close()
        assert first.info().state == "IDLE"


def test_waiting_jobs_keep_their_places_while_a_system_is_drained(system):
    waiting = []
    with client(system) as first, client(system) as second:
        reservation = first.reserve("job-1", "token")

        def on_wait(sentence: str) -> None:
            waiting.append(sentence)
            if len(waiting) == 1:
                text(system, "drain")
                reservation.close()
            elif "drained since" in sentence:
                text(system, "resume")

        second.reserve("job-2", "token", wait=True, on_wait=on_wait).close()
    assert any("held by job-1" in sentence for sentence in waiting)
    assert any("drained since" in sentence and "place 1" in sentence for sentence in waiting)


def test_drained_and_mode_survive_a_restart(tmp_path):
    with state_system(tmp_path) as system:
        text(system, "drain")
        text(system, "mode", "weight_streaming")
    with state_system(tmp_path) as system, client(system) as asking:
        admission = asking.info().admission
        assert admission.drained_by == this_user()
        assert admission.modes == ("weight_streaming",)
        assert "takes programs of execution weight_streaming" in text(system, "mode")
        assert "pipelined and weight_streaming" in text(system, "mode", "both")


def test_a_released_job_learns_who_released_it(system):
    with client(system) as chief:
        reservation = chief.reserve("job-1", "token")
        assert text(system, "release").startswith(f"released job job-1 of {this_user()} at ")
        with pytest.raises(ReservationLostError, match=f"released by {this_user()}"):
            reservation.program()
        assert chief.info().state == "IDLE"
    assert "job-1" in system.log()
    assert f"released by {this_user()}" in system.log()


def test_a_job_in_the_queue_is_released_by_its_name(system):
    with client(system) as first, client(system) as second:
        first.reserve("job-1", "token")
        released = []

        def on_wait(sentence: str) -> None:
            if not released:
                released.append(text(system, "release", "--job=job-2"))

        with pytest.raises(ReservationLostError, match="released by"):
            second.reserve("job-2", "token", wait=True, on_wait=on_wait)
        run_info = first.info().run
        assert run_info is not None
        assert run_info.job == "job-1"
        with pytest.raises(NoSuchJobError, match="job job-7 neither holds it"):
            second.release("job-7")


def test_a_job_of_a_pool_is_released_at_all_its_places(system, tmp_path_factory):
    with running_system(tmp_path_factory.mktemp("other"), ["--threads=1"]) as other:
        addresses = f"--cs_ip={system.address},{other.address}"
        with client(system) as first, client(other) as second:
            first.reserve("job-1", "token")
            second.reserve("job-2", "token")
            done = CliRunner().invoke(main, ["release", addresses, "--job=job-2"])
            assert done.output.startswith("released job job-2 of ")
            assert done.output.endswith(f" at {other.address}\n")
            assert first.info().run is not None
            assert second.info().run is None
        done = CliRunner().invoke(main, ["release", addresses, "--job=job-7"])
        assert (done.exit_code, "job-7 neither holds one of 2" in done.output) == (2, True)


@pytest.mark.parametrize("command", [["release"], ["mode", "unknown"]])
def test_commands_that_cannot_be_done_say_why(system, command):
    done = run(system, *command)
    assert done.exit_code == 2
    assert "no job holds it" in done.output or "unknown" in done.output


def test_the_mode_decides_which_programs_are_taken(system, program):
    with client(system) as chief:
        reservation = chief.reserve("job-1", "token")
        text(system, "mode", "weight_streaming")
        with pytest.raises(ArtifactRefusedError, match="set the mode of this CS system to weight_streaming"):
            reservation.load(Source(program))
        text(system, "mode", "pipelined")
        reservation.load(Source(program))
        info = chief.info().run
        assert info is not None
        assert info.execution == "pipelined"


def test_the_use_is_counted_by_user_and_job_and_survives_a_restart(tmp_path):
    with state_system(tmp_path) as system, client(system) as chief:
        for job in ("job-1", "job-2"):
            with chief.reserve(job, "token"):
                time.sleep(0.2)
        with chief.reserve("job-3", "token"):
            # The running job counts until now.
            jobs = [json.loads(line) for line in text(system, "usage", "--by=job", "--json").splitlines()]
    assert {one["name"] for one in jobs} == {"job-1", "job-2", "job-3"}
    with state_system(tmp_path) as system:
        (user,) = [json.loads(line) for line in text(system, "usage", "--json").splitlines()]
        assert user["name"] == this_user().partition("@")[0]
        assert user["reservations"] == 3
        assert user["wafer_hours"] > 0.4 / 3600
        assert "RESERVATIONS  WAFER-HOURS" in text(system, "usage")
        assert text(system, "usage", "--until=2000-01-01", "--since=1999-01", "--json") == ""
    (log,) = (tmp_path / "state").glob("usage-*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["end"] for line in lines] == ["released by its chief"] * 3


def test_a_system_that_ends_logs_the_use_of_its_job(tmp_path):
    with state_system(tmp_path) as system, client(system) as chief:
        chief.reserve("job-1", "token")
        system.process.terminate()
        system.process.wait(10)
    (log,) = (tmp_path / "state").glob("usage-*.jsonl")
    assert "shutting down" in json.loads(log.read_text())["end"]


def test_status_of_a_pool_skips_a_system_that_does_not_answer(system):
    addresses = f"--cs_ip={system.address},127.0.0.1:1"
    done = CliRunner().invoke(main, ["status", addresses])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].startswith("SYSTEM")
    assert system.address in done.stdout
    assert "warning: no CS system answers at 127.0.0.1:1" in done.stderr
    lines = CliRunner().invoke(main, ["status", addresses, "--json"]).stdout.splitlines()
    assert [json.loads(line)["address"] for line in lines] == [system.address]
    for command in ("drain", "release", "mode"):
        refused = CliRunner().invoke(main, [command, addresses])
        assert refused.exit_code == 2
        assert "name one with --cs_ip" in refused.output


def test_top_prints_its_figures_where_there_is_no_terminal(system):
    assert "IDLE" in text(system, "top", "--once")
    assert json.loads(text(system, "top", "--once", "--json"))["state"] == "IDLE"


def test_q_ends_top_and_the_terminal_is_as_before(system):
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "cs_system", "top", f"--cs_ip={system.address}"]
    before = subprocess.run(["stty", "-a"], stdin=terminal, capture_output=True, check=True).stdout
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    )
    shown = b""
    deadline = time.monotonic() + 30
    while b"IDLE" not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([controller], [], [], 0.1)[0]:
            shown += os.read(controller, 65536)
    os.write(controller, b"q")
    while process.poll() is None:
        assert time.monotonic() < deadline
        if select.select([controller], [], [], 0.1)[0]:
            os.read(controller, 65536)
    assert process.returncode == 0
    after = subprocess.run(["stty", "-a"], stdin=terminal, capture_output=True, check=True).stdout
    assert after == before
    os.close(terminal)
    os.close(controller)


class Source:
    """The linear step as an artifact."""

    def __init__(self, program: Program) -> None:
        data = program.executable
        executable = Executable("step", program.interface, hashlib.sha256(data).hexdigest(), len(data))
        self.step = CompiledStep("ab" * 32, "cs2", "pipelined", program.interface, (executable,))
        self._data = data

    def executable_bytes(self, name: str) -> bytes:
        return self._data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SiteCertificates:
    return SiteCertificates(tmp_path_factory.mktemp("site"))


def test_with_certificates_a_user_may_release_only_his_own_job(tmp_path, site, monkeypatch):
    def act_as(credentials: Credentials) -> None:
        monkeypatch.setenv("CS_CERTS", str(credentials.directory))

    alice, admin = site.user, site.admin
    host = this_user().partition("@")[2]
    with running_system(tmp_path, [f"--certs={site.system.directory}", "--threads=1"]) as system:
        act_as(admin)
        with client(system) as chief:
            chief.reserve("job-1", "token")
            # The owner is the name in the certificate, whatever the account on his machine.
            assert chief.info().run.owner == f"root@{host}"
            act_as(alice)
            for command in (["release"], ["drain"], ["mode", "pipelined"]):
                refused = run(system, *command)
                assert refused.exit_code == 1
                assert "the certificate is that of alice" in refused.output
            assert run(system, "usage").exit_code == 0
        with client(system) as chief:
            chief.reserve("job-2", "token", wait=True)
            assert f"released job job-2 of alice@{host}" in text(system, "release")
        act_as(admin)
        assert "takes no new jobs" in text(system, "drain")
