"""The common form of fuzz targets, their corpus, and the helpers that several of them need."""

from __future__ import annotations

import functools
import importlib
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cs_toolkit.network.connection import Connection, PeerGoneError

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
"""Inputs that once were findings, in a folder for each target."""

NATIVE_MODULES = ("checkpoints", "executables", "tensorflow_files")
"""Modules of parsers in libraries that may crash the process; tests run them in a child process."""

_NAME = re.compile(r'\bTarget\(\s*"([\w.]+)"')


@dataclass(frozen=True)
class Target:
    """A parser of bytes from the network or from a file.

    Attributes:
        name: MODULE.PARSER, with the module in `tests/fuzz/targets`.
        parse: Called with any bytes.
        errors: The errors that the callers of the parser handle; any other one is a finding.
        seeds: Returns valid inputs, which the project's own encoders write.
        mutations: Number of mutations of the corpus that tests parse.
        may_crash: The library that parses is known to crash. Its callers run it in another process, so that a
            crash is no finding.
    """

    name: str
    parse: Callable[[bytes], object]
    errors: tuple[type[BaseException], ...]
    seeds: Callable[[], Sequence[bytes]]
    mutations: int = 300
    may_crash: bool = False

    def check(self, data: bytes) -> bool:
        """Parse an input; return False if it is refused."""
        try:
            self.parse(data)
        except self.errors:
            return False
        return True

    def corpus(self) -> list[bytes]:
        """Return the seeds, and the inputs that once were findings."""
        return [*self.seeds(), *(path.read_bytes() for path in sorted((CORPUS / self.name).glob("*")))]


def target_names() -> list[str]:
    """Return the names of all targets, without importing them."""
    files = sorted((HERE / "targets").glob("*.py"))
    return [name for path in files for name in _NAME.findall(path.read_text(encoding="utf-8"))]


def find_target(name: str) -> Target:
    """Import a target; targets of other modules are not imported."""
    module = importlib.import_module(f"tests.fuzz.targets.{name.partition('.')[0]}")
    targets: Sequence[Target] = module.TARGETS
    return next(target for target in targets if target.name == name)


# -- mutations -------------------------------------------------------------------------------------------

_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_VALUE = re.compile(rb'"[^"\\]{0,40}"|\d+|true|false|null|\[\]|\{\}')
_BYTES = (b"\0", b"\xff", b"\x7f", b"\x80", b"\n", b"[", b"{", b'"', b"\\", b"\xed\xa0\x80")
_NUMBERS = (b"0", b"-1", b"1e999", b"-0.0", b"NaN", b"4294967296", b"9" * 400, b"9" * 5000, b"true", b'"7"')
_VALUES = (
    b"null",
    b"[]",
    b"{}",
    b'""',
    b'"\\ud800"',
    b"1.5",
    b"[[1]]",
    b'{"a":null}',
    b"[" * 600 + b"]" * 600,
    b"[" * 3000 + b"]" * 3000,
)


def mutations(target: str, corpus: Sequence[bytes], count: int) -> Iterator[bytes]:
    """Yield `count` inputs made from a corpus by one to four changes, the same ones at every call."""
    choose = random.Random(target)
    for number in range(count):
        data = corpus[number % len(corpus)]
        for _ in range(choose.choice((1, 1, 1, 2, 4))):
            data = _mutate(choose, data, choose.choice(corpus))
        yield data


def _mutate(choose: random.Random, data: bytes, other: bytes) -> bytes:
    start, end = sorted((choose.randint(0, len(data)), choose.randint(0, len(data))))
    match choose.randrange(8):
        case 0 if data:  # a flipped bit
            at = choose.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:start]
        case 2:
            return data[:start] + data[end:]
        case 3:
            return data[:end] + data[start : start + 300] + data[end:]
        case 4:  # parts of two inputs
            return data[:start] + other[choose.randint(0, len(other)) :]
        case 5:  # an integer, such as a length
            width = choose.choice((1, 2, 4, 8))
            value = choose.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1, 64, 255))
            return data[:start] + (value % 256**width).to_bytes(width, "little") + data[start + width :]
        case 6 if numbers := list(_NUMBER.finditer(data)):
            return _replace(choose, data, numbers, _NUMBERS)
        case 7 if values := list(_VALUE.finditer(data)):
            return _replace(choose, data, values, _VALUES)
    return data[:start] + choose.choice(_BYTES) + data[start:]


def _replace(
    choose: random.Random, data: bytes, places: Sequence[re.Match[bytes]], values: Sequence[bytes]
) -> bytes:
    place = choose.choice(places)
    return data[: place.start()] + choose.choice(values) + data[place.end() :]


# -- inputs with structure -------------------------------------------------------------------------------


class Choices:
    """Reads an input as choices of a program, such as the next frame to send; after its end all are 0.

    Targets use it where random bytes would not get beyond a digest.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def is_empty(self) -> bool:
        """True if all bytes have been read."""
        return self._at >= len(self._data)

    def number(self, width: int = 1) -> int:
        """Read a number of `width` bytes."""
        return int.from_bytes(self._take(width), "little")

    def text(self) -> bytes:
        """Read up to 64 KiB of bytes, after their number."""
        return self._take(self.number(2))

    def _take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        self._at += count
        return found


def encode_text(data: bytes) -> bytes:
    """Encode bytes as `Choices.text` reads them."""
    return len(data).to_bytes(2, "little") + data


class ReplayedConnection(Connection):
    """A connection whose peer sends given bytes, and disconnects after them.

    Attributes:
        sent: Bytes that were sent to the peer.
    """

    own_host = "127.0.0.1"

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.sent = bytearray()
        self.on_timeout = None

    def receive_some(self, buffer: memoryview, deadline_s: float | None = None) -> int:
        count = min(len(buffer), len(self.data))
        if count == 0:
            raise PeerGoneError("the connection was closed")
        buffer[:count] = self.data[:count]
        self.data = self.data[count:]
        return count

    def receive(self, buffers: Sequence[memoryview], deadline_s: float | None = None) -> None:
        for buffer in buffers:
            view = buffer.cast("B")
            while len(view):
                view = view[self.receive_some(view) :]

    def send(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        for buffer in buffers:
            self.sent += buffer

    def send_now(self, data: bytes | bytearray | memoryview) -> bool:
        self.sent += data
        return True

    def limit_receive(self, seconds: float | None) -> None:
        return

    def limit_send(self, seconds: float | None) -> None:
        return

    def break_when_lost(self, seconds: int) -> None:
        return

    def shut_down(self, how: int = 0) -> None:
        return

    def close(self) -> None:
        return


DIRECTORY_VARIABLE = "CS_FUZZ_FILES"


def memory_directory() -> TemporaryDirectory[str]:
    """Make a temporary directory in memory: libFuzzer writes thousands of files a second."""
    return TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


_own_directory = functools.cache(memory_directory)


def temporary_file(data: bytes, name: str = "file") -> Path:
    """Write an input to a file, which the next call for the same name replaces, for parsers of files."""
    # That of the parent is removed also after a crash.
    path = Path(os.environ.get(DIRECTORY_VARIABLE) or _own_directory().name) / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(data)
    return path
