"""Executables of an artifact: the way through the control plane to the engine, and the server's cache."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

from cgc.artifact import Artifact, artifact_lock, file_entries, open_artifact, publish
from cgc.manifest import (
    FILES,
    FORMAT_VERSION,
    ExecutableEntry,
    FabricName,
    Interface,
    Manifest,
    PipelinedEstimates,
    executable_file,
)
from cs_stream.receiver import Receiver
from cs_system.client import SystemClient, parse_address
from cs_system.errors import ArtifactRefusedError, SystemBugError, WireFormatError
from cs_system.memoryx.config import MemoryxConfig
from cs_system.proto import cs_system_pb2_grpc
from cs_system.server.artifacts import MAX_ARTIFACT_BYTES, ExecutableStore, Offer, default_cache_dir
from cs_system.server.engine_process import EnginePool, EngineProcess
from cs_system.server.service import CsSystemServicer
from cs_system.server.system import System, SystemOptions
from cs_system.swarmx.hosts import HostPool
from cs_toolkit.execution_options import SystemShare
from cs_toolkit.step import CompiledStep, Executable, StepInterface, TensorSpec

W = TensorSpec("state.model.w", "float32", (4, 2))
X = TensorSpec("input_0", "float32", (8, 4))
GRADIENT = TensorSpec("gradient", "float32", (4, 2))
STEP = StepInterface((X,), (W,), (), ("state.model.w",))
PARTS = {
    "layer": (StepInterface((X,), (W,), (GRADIENT,), ()), b"layer" * 700_000),  # more than one message
    "update": (StepInterface((GRADIENT,), (W,), (), ("state.model.w",)), b"update"),
    "last_layer": (StepInterface((X,), (W,), (GRADIENT,), ()), b"layer" * 700_000),
    "nothing": (StepInterface((), (), (), ()), b""),
}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Artifact:
    """An artifact of several executables; two of them have the same bytes."""
    files = {name: name.encode() for name in FILES["pipelined"]}
    files |= {executable_file(name): data for name, (_, data) in PARTS.items()}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        tool_version="cgc-0",
        key="ab" * 32,
        mode="train",
        precision="float32",
        batch_size=8,
        interface=Interface.from_step(STEP),
        executables=[
            ExecutableEntry(name=name, interface=Interface.from_step(interface))
            for name, (interface, _) in PARTS.items()
        ],
        fabric=FabricName(name="cs2", processing_elements=10),
        estimates=PipelinedEstimates(deltat_cycles=1, samples_per_s=1.0, active_pes=1, total_utilization=0.1),
        versions={},
        files=file_entries(files),
    )
    with artifact_lock(tmp_path_factory.mktemp("artifacts"), manifest.key, timeout_s=0) as lock:
        return open_artifact(publish(lock, manifest, files).path)


@dataclass
class Loaded:
    """Records the arguments of an engine instead of one."""

    step: CompiledStep
    data: dict[str, bytes]
    chunk_batches: int
    memoryx: MemoryxConfig
    wafers: int
    host_pool: HostPool | None
    start_process: Callable[[], EngineProcess]
    interface: StepInterface = field(init=False)

    def __post_init__(self) -> None:
        self.interface = self.step.interface

    def free(self) -> None:
        pass


@pytest.fixture
def engines(monkeypatch) -> list[Loaded]:
    """The engines that the system makes."""
    made: list[Loaded] = []

    def make(*arguments):
        made.append(Loaded(*arguments))
        return made[-1]

    monkeypatch.setattr("cs_system.server.run.make_engine", make)
    return made


class _NoProcesses(EnginePool):
    def prepare(self) -> None:
        """Start no process."""


@pytest.fixture
def client(tmp_path) -> Iterator[SystemClient]:
    """A client of a control plane in this process."""
    started: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    async def serve(device: ThreadPoolExecutor, receiver: Receiver) -> None:
        options = SystemOptions("cs2", "{}", memoryx=MemoryxConfig(servers=5))
        system = System(options, device, _NoProcesses(1, None), receiver, ExecutableStore(tmp_path, 1 << 30))
        server = grpc.aio.server()
        cs_system_pb2_grpc.add_CsSystemServicer_to_server(CsSystemServicer(system), server)
        end = asyncio.Event()
        started.append((server.add_insecure_port("127.0.0.1:0"), asyncio.get_running_loop(), end))
        await server.start()
        ready.set()
        await end.wait()
        await server.stop(5.0)

    receiver = Receiver("127.0.0.1", 0)
    with ThreadPoolExecutor(1) as device:
        thread = threading.Thread(target=lambda: asyncio.run(serve(device, receiver)))
        thread.start()
        assert ready.wait(20.0)
        ((port, loop, end),) = started
        try:
            with SystemClient(parse_address(f"127.0.0.1:{port}")) as client:
                yield client
        finally:
            loop.call_soon_threadsafe(end.set)
            thread.join(20.0)
            receiver.close()


def test_the_engine_gets_the_executables_of_the_artifact_in_their_order(artifact, client, engines):
    with client.reserve("job", "token") as reservation:
        reservation.load(artifact)
    (engine,) = engines
    assert engine.step == artifact.step
    assert list(engine.data.items()) == [(name, data) for name, (_, data) in PARTS.items()]
    assert [executable.interface for executable in engine.step.executables] == [i for i, _ in PARTS.values()]
    assert [executable.sha256 for executable in engine.step.executables] == [
        hashlib.sha256(data).hexdigest() for _, data in PARTS.values()
    ]


def test_equal_bytes_travel_once_and_never_again(artifact, client, engines, monkeypatch):
    from cs_system.client import reservation as module

    sent, chunks = [], module._artifact_chunks

    def noted(sha256, data):
        sent.append(data)
        return chunks(sha256, data)

    monkeypatch.setattr(module, "_artifact_chunks", noted)
    for _ in range(2):
        with client.reserve("job", "token") as reservation:
            reservation.load(artifact)
    assert sent == [b"layer" * 700_000, b"update", b""]
    assert engines[0].step == engines[1].step
    assert engines[0].data == engines[1].data


def test_a_program_may_ask_for_fewer_memoryx_processes_than_there_are(artifact, client, engines):
    for limit in (None, 2):
        with client.reserve("job", "token") as reservation:
            reservation.load(artifact, SystemShare(weight_servers=limit))
    assert [engine.memoryx.servers for engine in engines] == [5, 2]


# One offer


def step_of(**contents: bytes) -> CompiledStep:
    executables = tuple(
        Executable(name, STEP, hashlib.sha256(data).hexdigest(), len(data)) for name, data in contents.items()
    )
    return CompiledStep("ab" * 32, "cs2", "pipelined", STEP, executables)


@pytest.fixture
def store(tmp_path) -> ExecutableStore:
    return ExecutableStore(tmp_path / "store", 1000)


def test_complete_executables_are_stored_even_if_the_next_one_is_damaged(store):
    step = step_of(first=b"one", second=b"two")
    first, second = (executable.sha256 for executable in step.executables)
    offer = Offer(step, "cs2", store)
    assert offer.look_up() == [first, second]
    for part in (b"o", b"ne"):
        offer.add(first, part)
    offer.add(second, b"Two")
    with pytest.raises(
        ArtifactRefusedError, match="executable 'second' of artifact abababababab arrived dam"
    ):
        offer.complete()
    again = Offer(step, "cs2", store)
    assert again.look_up() == [second]
    again.add(second, b"two")
    again.complete()
    assert again.data() == {"first": b"one", "second": b"two"}


def test_unrequested_and_too_long_data_is_refused_on_arrival(store):
    step = step_of(first=b"one")
    offer = Offer(step, "cs2", store)
    offer.look_up()
    with pytest.raises(WireFormatError, match=r"got bytes of 'cdcdcdcdcdcd', expected an executable of"):
        offer.add("cd" * 32, b"")
    with pytest.raises(ArtifactRefusedError, match=r"arrived damaged: got 4 bytes .*, expected 3 with"):
        offer.add(step.executables[0].sha256, b"ones")
    there = Offer(step, "cs2", ExecutableStore(Path("/nowhere"), 1000))
    there.look_up()
    there.add(step.executables[0].sha256, b"on")
    with pytest.raises(ArtifactRefusedError, match="got 2 bytes"):
        there.complete()


@pytest.mark.parametrize(
    ("executables", "kind", "message"),
    [
        ((), ArtifactRefusedError, "has the executables none, expected at least one"),
        (
            (Executable("a", STEP, "ab" * 32, 1), Executable("a", STEP, "cd" * 32, 1)),
            ArtifactRefusedError,
            "has the executables a, a, expected at least one, each with a unique name; compile it again",
        ),
        (
            (
                Executable("a", STEP, "ab" * 32, MAX_ARTIFACT_BYTES),
                Executable("b", STEP, "ab" * 32, MAX_ARTIFACT_BYTES),
                Executable("c", STEP, "cd" * 32, 1),
            ),
            ArtifactRefusedError,
            "have 2,147,483,649 bytes, the system takes 2,147,483,648; move large constants",
        ),
        ((Executable("a", STEP, "../" + "a" * 61, 1),), WireFormatError, "is not a SHA-256 digest"),
    ],
    ids=["none", "a name twice", "too large", "no digest"],
)
def test_a_list_that_is_none_is_refused_before_anything_is_sent(store, executables, kind, message):
    with pytest.raises(kind, match=message):
        Offer(replace(step_of(), executables=executables), "cs2", store)


@pytest.mark.parametrize("key", ["", "../etc", "\x1b[2J", "A" * 64, "ab" * 2_000_000])
def test_a_key_that_is_no_digest_is_refused(store, key):
    # The status of the system contains it.
    with pytest.raises(WireFormatError, match=r"^'.{0,80}' is not a SHA-256 digest$"):
        Offer(replace(step_of(), key=key), "cs2", store)


def test_a_bug_of_the_system_is_one_for_its_client_too(artifact, client, monkeypatch):
    def broken(*arguments):
        raise KeyError("planted")

    monkeypatch.setattr("cs_system.server.service.step_from_wire", broken)
    with client.reserve("job", "token") as reservation, pytest.raises(SystemBugError) as caught:
        reservation.load(artifact)
    assert caught.value.exit_code == 3
    assert "internal error of the CS system: KeyError" in str(caught.value)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: ExecutableStore, data: bytes) -> str:
    store.put(digest(data), data)
    return digest(data)


def test_stored_executables_are_found_by_another_server(tmp_path):
    key = put(ExecutableStore(tmp_path / "new" / "dir", 1000), b"program")
    assert ExecutableStore(tmp_path / "new" / "dir", 1000).get(key) == b"program"
    assert ExecutableStore(tmp_path, 1000).get(digest(b"other")) is None


def test_a_damaged_file_is_dropped(tmp_path, caplog):
    store = ExecutableStore(tmp_path, 1000)
    key = put(store, b"program")
    (tmp_path / key).write_bytes(b"progrAm")
    assert store.get(key) is None
    assert "is damaged" in caplog.text
    assert not (tmp_path / key).exists()


def test_the_longest_unused_ones_go_first(tmp_path):
    store = ExecutableStore(tmp_path, 30)
    keys = [put(store, bytes([n]) * 10) for n in range(3)]
    for age, key in enumerate(keys):
        os.utime(tmp_path / key, (0, 100 + age))
    assert store.get(keys[0]) is not None  # used now, so it is the newest
    put(store, b"x" * 10)
    assert [store.get(key) is not None for key in keys] == [True, False, True]


def test_executables_larger_than_the_limit_are_not_stored(tmp_path):
    store = ExecutableStore(tmp_path, 5)
    assert store.get(put(store, b"123456")) is None
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    store = ExecutableStore(tmp_path / "file" / "dir", 100)
    assert store.get(put(store, b"program")) is None
    assert "cannot be stored" in caplog.text


def test_without_a_directory_nothing_is_stored():
    store = ExecutableStore(None, 100)
    assert store.get(put(store, b"program")) is None


def test_default_directory_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "cs_system"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/cs_system")
