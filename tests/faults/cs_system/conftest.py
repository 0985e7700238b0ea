from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from cgc.artifact import Artifact
from cgc.cirh.text import parse_module
from cgc.driver import compile_step
from cgc.execution.compilation import CompileOptions
from cs_stream.batches import BatchLayout
from cs_stream.sender import Sender, SendSummary, WorkerIdentity
from cs_system.client import Reservation, SystemClient, join_run, parse_address
from cs_system.messages import InputIdentity
from cs_toolkit.fabric import load_fabric
from cs_toolkit.step import CompiledStep, Executable
from tests.processes import wait_until
from tests.programs.steps import LINEAR
from tests.systems import RunningSystem, running_system

IDENTITY = InputIdentity(1, {"mode": "train"})
TOKEN = "secret"

# Prints one line for each step of a chief's life; stays in it until it is killed.
CHIEF = """
import sys
from pathlib import Path
import numpy as np
from cgc.artifact import open_artifact
from cs_system.client import SystemClient, parse_address
from cs_system.messages import InputIdentity

address, artifact, token = sys.argv[1:]
with SystemClient(parse_address(address)) as client:
    reservation = client.reserve("job", token)
    print("reserved", flush=True)
    if artifact:
        reservation.load(open_artifact(artifact))
        reservation.program()
        state = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in reservation._interface.state}
        reservation.put_state(state)
        reservation.open_input(2, InputIdentity(1, {"mode": "train"}), 0)
        for outputs in reservation.run_steps(10**9):
            print("step", outputs.first_step, flush=True)
    sys.stdin.read()
"""

MakeBatches = Callable[[int], Iterator[Sequence[np.ndarray]]]


@dataclass(frozen=True)
class Linear:
    """The linear step as an artifact, and data for it."""

    artifact: Artifact

    @property
    def layout(self) -> BatchLayout:
        return BatchLayout.of_step(self.artifact.interface.inputs)

    def state(self, step: int = 0) -> dict[str, np.ndarray]:
        return {
            "state.model.w": np.zeros((4, 1), np.float32),
            "state.optimizer.lr": np.full((), 0.001, np.float32),
            "state.global_step": np.full((), step, np.int64),
        }

    def batches(self, worker: int, workers: int, count: int | None = None) -> MakeBatches:
        """A worker's input: the labels of every batch are its position; endless without `count`."""

        def make(skip: int) -> Iterator[Sequence[np.ndarray]]:
            index = skip
            while count is None or index < count:
                position = index * workers + worker
                inputs = np.random.default_rng(position).standard_normal((8, 4)).astype(np.float32)
                yield inputs, np.full(8, position, np.int32)
                index += 1

        return make


@dataclass(frozen=True)
class Made:
    """A step with executables of any bytes, as `cs_toolkit.step.StepSource` wants it."""

    step: CompiledStep
    data: Mapping[str, bytes]

    def executable_bytes(self, name: str) -> bytes:
        return self.data[name]


def made(step: CompiledStep, data: Mapping[str, bytes]) -> Made:
    """Return the step with other executables."""
    executables = tuple(
        Executable(name, step.interface, hashlib.sha256(content).hexdigest(), len(content))
        for name, content in data.items()
    )
    return Made(replace(step, executables=executables), data)


def compiled(directory: Path, text: str, fabric: str = "cs2") -> Artifact:
    """An artifact of a step for a fabric of this name."""
    target = load_fabric().model_copy(update={"name": fabric})
    return compile_step(parse_module(text), directory, CompileOptions(), target).artifact


@pytest.fixture(scope="session")
def linear(tmp_path_factory) -> Linear:
    return Linear(compiled(tmp_path_factory.mktemp("artifacts"), LINEAR.read_text()))


@dataclass
class Workers:
    """Workers of a job as threads of this process.

    Attributes:
        summaries: Of those that have ended, by index.
        errors: What the others raised.
    """

    address: str
    job: str
    layout: BatchLayout
    summaries: dict[int, SendSummary] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)
    senders: dict[int, Sender] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self, inputs: Sequence[MakeBatches], indices: Sequence[int] | None = None) -> None:
        for index in range(len(inputs)) if indices is None else indices:
            thread = threading.Thread(
                target=self._work, args=(index, len(inputs), inputs[index]), daemon=True
            )
            self.threads.append(thread)
            thread.start()

    def _work(self, index: int, workers: int, make_batches: MakeBatches) -> None:
        try:
            ticket = join_run(parse_address(self.address), self.job, TOKEN, 30.0)
            identity = WorkerIdentity(
                job_id=self.job, token=TOKEN, worker=index, num_workers=workers, input_digest=IDENTITY.digest
            )
            sender = Sender(
                (ticket.data_host, ticket.data_port), identity, self.layout, credentials=ticket.credentials
            )
            self.senders[index] = sender
            self.summaries[index] = sender.run(make_batches)
        except BaseException as error:
            self.errors[index] = error

    def join(self, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), "a worker does not end"

    def stop(self) -> None:
        for sender in self.senders.values():
            sender.stop()


@pytest.fixture(scope="session")
def shared_system(tmp_path_factory) -> Iterator[RunningSystem]:
    with running_system(tmp_path_factory.mktemp("system"), ["--reconnect-s=0.3", "--threads=1"]) as system:
        yield system
    # Whatever the tests did to it, nothing of it was a surprise to the server.
    for sign in ("internal error", "never retrieved", "Exception in", "never awaited"):
        assert sign not in system.log()


@pytest.fixture
def system(shared_system) -> Iterator[RunningSystem]:
    """A system that is idle before the test and has to be idle again after it."""
    wait_for_state(shared_system, "IDLE")
    yield shared_system
    wait_for_state(shared_system, "IDLE")


@pytest.fixture
def own_system(tmp_path) -> Iterator[RunningSystem]:
    """A system that the test may end."""
    with running_system(tmp_path, ["--threads=1"]) as system:
        yield system


@pytest.fixture
def client(system) -> Iterator[SystemClient]:
    with SystemClient(parse_address(system.address)) as client:
        yield client


@pytest.fixture
def workers(system, linear) -> Iterator[Workers]:
    group = Workers(system.address, "job", linear.layout)
    yield group
    group.stop()
    group.join()


@pytest.fixture
def reservation(client, workers) -> Iterator[Reservation]:
    """The system held by "job"; given back before the workers are joined."""
    with client.reserve("job", TOKEN) as reservation:
        yield reservation


@pytest.fixture
def loaded(reservation, linear) -> Reservation:
    reservation.load(linear.artifact)
    reservation.program()
    reservation.put_state(linear.state())
    return reservation


@contextlib.contextmanager
def chiefs(address: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start chiefs in separate processes; each is returned when it has printed `line`."""
    started = []

    def start(line: str, artifact: object = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", CHIEF, address, str(artifact), TOKEN],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        for got in process.stdout or ():
            if got.startswith(line):
                return process
        raise AssertionError(f"the chief ended with {process.wait()} before '{line}'")

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def chief(system):
    """Starts chiefs of the shared system."""
    with chiefs(system.address) as start:
        yield start


@pytest.fixture
def silent_chief(silent_system):
    """Starts chiefs of a system that the test may stop."""
    with chiefs(silent_system.address) as start:
        yield start


def state_of(system: RunningSystem) -> str:
    with SystemClient(parse_address(system.address)) as client:
        return client.info().state


def wait_for_state(system: RunningSystem, state: str, timeout_s: float = 60.0) -> float:
    return wait_until(lambda: state_of(system) == state, timeout_s)


@pytest.fixture
def helpers():
    """The functions of this file that tests call."""
    return Helpers


class Helpers:
    Workers = Workers
    identity = IDENTITY
    token = TOKEN
    linear_text = LINEAR.read_text()
    compiled = staticmethod(compiled)
    made = staticmethod(made)
    wait_until = staticmethod(wait_until)
    wait_for_state = staticmethod(wait_for_state)
    state_of = staticmethod(state_of)

    @staticmethod
    @contextlib.contextmanager
    def ended(thread: threading.Thread) -> Iterator[None]:
        try:
            yield
        finally:
            thread.join(60)
            assert not thread.is_alive()
