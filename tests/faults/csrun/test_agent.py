"""The agent of one task with a launcher played by the test, without Slurm."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cs_toolkit.security.certificates import create_pinned_context
from csrun.agent.connection import Connection
from csrun.agent.plan import agent_command
from csrun.agent.protocol import (
    WINDOW_BYTES,
    Challenge,
    Credit,
    Ended,
    Gone,
    Heartbeat,
    Hello,
    Interrupted,
    Message,
    Note,
    Output,
    Refused,
    Signal,
    Start,
    Started,
    agent_proof,
    launcher_proof,
)
from csrun.schedulers.slurm.place import read_place
from tests.processes import kill_processes, list_processes, wait_until

TOKEN = "the token"
NONCE = "the launcher's number"
LIMIT_S = 30.0
Kind = TypeVar("Kind", bound=Message)


class Launcher:
    """The launcher's end of one agent, and the agent itself."""

    def __init__(self, folder: Path, *, under: tuple[str, ...] = (), certificate: str = "") -> None:
        self.folder = folder
        self.marker = uuid.uuid4().hex
        self.messages: list[Message] = []
        context, digest = create_pinned_context("job")
        with socket.create_server(("127.0.0.1", 0)) as server:
            environment = {
                "CSRUN_SUPERVISOR_CERT": certificate or digest,
                "PATH": os.environ["PATH"],
                "CSRUN_SUPERVISOR_PORT": str(server.getsockname()[1]),
                "CSRUN_JOB_TOKEN": TOKEN,
                "CSRUN_JOB_ID": self.marker,
                "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
                "SLURM_PROCID": "3",
                "SLURMD_NODENAME": "node7",
                "SLURM_JOB_ID": "12",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_TASKS": "4",
                "TEST_MARKER": self.marker,
            }
            self.process = subprocess.Popen(
                [*under, *agent_command(read_place)],
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            server.settimeout(LIMIT_S)
            accepted, _ = server.accept()
            accepted.settimeout(LIMIT_S)
            self.link = Connection(context.wrap_socket(accepted, server_side=True))
        if certificate:  # the agent does not believe that this is its launcher
            return
        self.link.send(Challenge(NONCE))
        self.hello = self.wait_for(Hello)

    def wait_for(self, kind: type[Kind]) -> Kind:
        """The next message of this kind; what comes before it is kept in `messages`."""
        limit_s = time.monotonic() + LIMIT_S
        while time.monotonic() < limit_s:
            for number, message in enumerate(self.messages):
                if isinstance(message, kind):
                    del self.messages[number]
                    return message
            self.messages += self.link.receive()
            time.sleep(0.005)
        raise AssertionError(f"no {kind.__name__}, but {self.messages}")

    def start(self, *command: str, token: str = TOKEN, **changes: object) -> None:
        """Has the agent run a command."""
        start = Start(
            command=command,
            cwd=str(self.folder),
            values={"CSRUN_RANK": "3", "CSRUN_JOB_ID": self.marker, "VALUE": "a b"},
            unset=("CSRUN_SUPERVISOR_PORT",),
            cpus=(),
            log=str(self.folder / "task.log"),
            append=False,
            exit_record=str(self.folder / "exits" / "rank-3.json"),
            grace_s=0.5,
            peer_timeout_s=60.0,
            proof="",
        )
        start = replace(start, **changes)  # type: ignore[arg-type]
        proof = launcher_proof(token, NONCE, self.hello.nonce, start)
        self.link.send(replace(start, proof=proof))

    def end(self) -> int:
        """Waits for the agent's end; its exit code."""
        return self.process.wait(timeout=LIMIT_S)

    def record(self) -> dict[str, object]:
        """The exit record."""
        record: dict[str, object] = json.loads((self.folder / "exits" / "rank-3.json").read_text())
        return record

    def left(self) -> list[int]:
        """Living processes of the agent and its task."""
        return list_processes(f"TEST_MARKER={self.marker}".encode())


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    launchers: list[Launcher] = []

    def call(**options: Any) -> Launcher:
        launchers.append(Launcher(tmp_path, **options))
        return launchers[-1]

    yield call
    for launcher in launchers:
        launcher.link.close()
        kill_processes(launcher.left)
        launcher.process.wait()
        if launcher.process.stderr is not None:
            launcher.process.stderr.close()


def test_a_task_from_start_to_end(launch: Callable[..., Launcher]) -> None:
    launcher = launch()
    hello = launcher.hello
    assert (hello.rank, hello.node, hello.job_id) == (3, "node7", "12")
    assert hello.proof == agent_proof(TOKEN, NONCE, hello)
    script = 'echo "$VALUE $CSRUN_SUPERVISOR_PORT $CSRUN_JOB_TOKEN $CSRUN_NODE"; pwd; exit 7'
    launcher.start("sh", "-c", script)
    assert launcher.wait_for(Started).pid > 0
    assert launcher.wait_for(Ended).exit_code == 7
    shown = b"".join(each.data for each in launcher.messages if isinstance(each, Output)).decode()
    assert shown == f"a b  {TOKEN} node7\n{launcher.folder}\n"
    launcher.link.send(Signal(signal.SIGTERM))
    launcher.wait_for(Gone)
    assert launcher.end() == 7
    assert (launcher.folder / "task.log").read_text() == shown
    record = launcher.record()
    assert (record["exit_code"], record["signal"], record["reason"]) == (7, None, "exited")


def test_nothing_runs_without_the_token(launch: Callable[..., Launcher]) -> None:
    launcher = launch()
    launcher.start("touch", "hacked", token="another token")
    assert launcher.end() == 1
    assert launcher.process.stderr is not None
    assert "does not know the job's token" in launcher.process.stderr.read()
    assert not (launcher.folder / "hacked").exists()


def test_the_task_ends_with_the_launcher(launch: Callable[..., Launcher]) -> None:
    launcher = launch()
    deaf = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; while :; do sleep 100; done' &); echo ready; "
    launcher.start("sh", "-c", f"{deaf} while :; do sleep 100; done")
    launcher.wait_for(Output)
    launcher.link.close()
    assert launcher.end() == 137
    assert not launcher.left()
    assert launcher.record()["reason"] == "the launcher is gone"
    assert launcher.record()["signal"] == 9


def test_the_task_ends_with_the_step_daemon(launch: Callable[..., Launcher]) -> None:
    launcher = launch(under=("sh", "-c", '"$@" & wait', "sh"))
    launcher.start("sleep", "1000")
    launcher.wait_for(Started)
    launcher.process.kill()
    assert launcher.wait_for(Ended).exit_code == 143
    launcher.wait_for(Gone)
    wait_until(lambda: not launcher.left())
    assert launcher.record()["reason"] == "Slurm's daemon is gone"


def test_a_killed_agent_takes_its_task_along(launch: Callable[..., Launcher]) -> None:
    launcher = launch()
    launcher.start("sh", "-c", "(trap '' TERM; sleep 1000 &); echo ready; sleep 1000")
    launcher.wait_for(Output)
    launcher.process.kill()
    wait_until(lambda: not launcher.left())


def test_a_slow_terminal_slows_the_task_and_nothing_is_lost(launch: Callable[..., Launcher]) -> None:
    count = 200_000  # 1.3 MB, more than window and pipe hold
    launcher = launch()
    launcher.start("seq", str(count))
    taken = b""
    while len(taken) < WINDOW_BYTES:
        taken += launcher.wait_for(Output).data
    launcher.wait_for(Heartbeat)  # the agent lives, and sends no more than it may
    launcher.wait_for(Heartbeat)
    assert not [each for each in launcher.messages if isinstance(each, Output)]
    assert len(taken) < WINDOW_BYTES + 65_536
    credit = len(taken)
    while not taken.endswith(f"\n{count}\n".encode()):
        launcher.link.send(Credit(credit))
        data = launcher.wait_for(Output).data
        taken += data
        credit = len(data)
    assert launcher.wait_for(Ended).exit_code == 0
    assert taken == "".join(f"{number}\n" for number in range(1, count + 1)).encode()
    launcher.link.send(Signal(signal.SIGTERM))
    launcher.wait_for(Gone)
    assert (launcher.folder / "task.log").read_bytes() == taken


@pytest.mark.parametrize(
    ("command", "changes", "code", "text"),
    [
        (("pyhton",), {}, 127, "node7: command not found: 'pyhton'"),
        (("true",), {"cwd": "/no/such/place"}, 1, "node7: cannot change to the working directory"),
        (("true",), {"log": "/dev/null/task.log"}, 1, "node7: cannot write the log /dev/null/task.log"),
    ],
)
def test_commands_that_cannot_be_started_are_refused_with_the_reason(
    launch: Callable[..., Launcher], command: tuple[str, ...], changes: dict[str, str], code: int, text: str
) -> None:
    launcher = launch()
    launcher.start(*command, **changes)
    refused = launcher.wait_for(Refused)
    assert refused.exit_code == code
    assert text in refused.text
    launcher.wait_for(Gone)
    assert launcher.end() == code
    assert str(launcher.record()["reason"]).startswith("not started: ")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGALRM])
def test_a_signal_of_the_scheduler_is_reported_and_ends_the_task(
    launch: Callable[..., Launcher], signum: signal.Signals
) -> None:
    launcher = launch()
    launcher.start("sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    launcher.wait_for(Output)
    launcher.process.send_signal(signum)
    assert launcher.wait_for(Interrupted).signum == signum
    assert launcher.wait_for(Ended).exit_code == 0
    launcher.wait_for(Gone)
    assert launcher.record()["reason"] == f"asked by Slurm ({signum.name})"


def test_slurm_s_signal_to_all_processes_is_no_failure_of_the_task(launch: Callable[..., Launcher]) -> None:
    """It reaches the task first and the agent a moment later."""
    launcher = launch()
    launcher.start("sleep", "1000")
    task = launcher.wait_for(Started).pid
    os.kill(task, signal.SIGTERM)
    time.sleep(0.1)
    launcher.process.terminate()
    assert launcher.wait_for(Ended).exit_code == 143
    assert any(isinstance(each, Interrupted) for each in launcher.messages)  # it came before the end
    launcher.wait_for(Gone)


def test_slurm_s_signal_before_the_start_ends_the_agent(launch: Callable[..., Launcher]) -> None:
    launcher = launch()
    launcher.process.terminate()
    launcher.wait_for(Gone)
    assert launcher.end() == 1


def test_a_full_disk_costs_the_log_and_not_the_task(launch: Callable[..., Launcher]) -> None:
    launcher = launch()
    launcher.start("sh", "-c", "echo one; sleep 0.2; echo two", log="/dev/full")
    assert launcher.wait_for(Ended).exit_code == 0
    assert "cannot write /dev/full: No space left on device" in launcher.wait_for(Note).text
    launcher.link.send(Signal(signal.SIGTERM))
    launcher.wait_for(Gone)


def test_a_log_of_a_run_before_is_kept_where_that_is_asked_for(launch: Callable[..., Launcher]) -> None:
    launcher = launch()
    (launcher.folder / "task.log").write_text("before\n")
    launcher.start("echo", "after", append=True)
    launcher.wait_for(Ended)
    launcher.link.send(Signal(signal.SIGTERM))
    launcher.wait_for(Gone)
    assert (launcher.folder / "task.log").read_text() == "before\nafter\n"


def test_agent_sends_nothing_to_another_process_at_the_port(launch: Any) -> None:
    """After the end of the launcher, another process may listen there, with another certificate."""
    launcher = launch(certificate="0" * 64)
    began_s = time.monotonic()
    while launcher.link.is_open() and time.monotonic() - began_s < LIMIT_S:
        assert launcher.link.receive() == []
        time.sleep(0.01)
    assert not launcher.link.is_open()
    assert launcher.end() == 1
    assert launcher.process.stderr is not None
    assert "cannot reach csrun_wse at port" in launcher.process.stderr.read()
