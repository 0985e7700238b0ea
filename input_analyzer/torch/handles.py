"""What a dataset holds open: forked worker processes share the position in a file, and connections."""

from __future__ import annotations

import fcntl
import gc
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from multiprocessing import active_children
from multiprocessing.managers import BaseManager, BaseProxy
from multiprocessing.queues import Queue, SimpleQueue
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_MOST_MEMBERS = 1000  # of a list are looked at
_MOST_THINGS = 20_000
_STANDARD = 2  # descriptors up to here are those of the terminal, or of a log
_LIBRARIES = frozenset({"h5py", "lmdb", "netCDF4", "pysam", "rasterio", "sqlite3", "tables"})
"""Their objects have open files or connections in C, where nobody sees them."""

Descriptors = Mapping[int, str]
"""What is open in this process, by its number: as the kernel names it."""


def open_now() -> Descriptors:
    """Files, sockets and pipes that this process reads, but mapped files; {} where /proc has none."""
    mapped, unshared = _mapped(), _multiprocessings()
    found: dict[int, str] = {}
    with suppress(OSError):
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the folder itself was open
                target, number = str(link.readlink()), int(link.name)
                if _is_shared(number) and target not in mapped and number not in unshared:
                    found[number] = target
    if any(name.startswith("pipe:") for name in found.values()):
        queues = _of_queues()
        return {number: name for number, name in found.items() if number not in queues}
    return found


def opened_since(before: Descriptors) -> str | None:
    """The name of something that this process has open now and had not before; None where there is none."""
    now = open_now()
    target = next((target for number, target in now.items() if before.get(number) != target), None)
    kind, _, inode = (target or "").partition(":")
    return f"a {kind} that the input function has opened" if inode.startswith("[") else target


_KEPT: dict[int, str] = {}
"""What the first input that was built has opened, or the import of its module."""


def remember(before: Descriptors | None) -> None:
    """To be called when the first input is built and nothing is read; see `kept`.

    Args:
        before: What was open before its module was imported; None: nobody knows.
    """
    _KEPT.clear()
    if before is not None:
        _KEPT.update({number: name for number, name in open_now().items() if before.get(number) != name})


def kept() -> str | None:
    """The name of something that was opened for the first input and is open for all that are built after it.

    Such are what a module, or a function's cache, holds open.
    """
    now = open_now()
    return next((name for number, name in _KEPT.items() if now.get(number) == name), None)


def _multiprocessings() -> frozenset[int]:
    """Descriptors of `multiprocessing`: a child closes them, or opens its own, as proxies of a Manager do."""
    found = {child.sentinel for child in active_children()}
    with suppress(AttributeError):  # no part of what it documents
        found |= {
            local.connection.fileno()
            for local, _ in BaseProxy._address_to_local.values()
            if hasattr(local, "connection")
        }
    return frozenset(found)


def _of_queues() -> frozenset[int]:
    """Descriptors of queues between processes, which have locks: of the worker processes of torch, too."""
    # Not with isinstance: it asks objects that stand for others for their class, which may do anything.
    queues = (one for one in gc.get_objects() if issubclass(type(one), Queue | SimpleQueue))
    return frozenset(queue._reader.fileno() for queue in queues if not queue._reader.closed)


def held_by(dataset: Any) -> str | None:
    """Where a dataset, a dataset or a transform within, or a list of theirs holds something open.

    Attributes are looked through; what only a function's closure knows is not found.

    Returns:
        As in "Records.file"; None where nothing was found.
    """
    seen: set[int] = set()
    waiting = [(type(dataset).__name__, dataset)]
    while waiting and len(seen) < _MOST_THINGS:
        name, thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _WITHOUT):
            continue
        seen.add(id(thing))
        if _is_open(thing):
            return name
        waiting += _within(name, thing)
    return None


_WITHOUT = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    torch.Tensor,
    np.ndarray,
    np.generic,
    ModuleType,
    type,
    BaseProxy,
    BaseManager,
)


def _is_open(thing: Any) -> bool:
    kind = type(thing)
    if {base.__module__.partition(".")[0] for base in kind.__mro__} & _LIBRARIES:
        with suppress(Exception):
            return kind.__module__.startswith("sqlite3") or bool(thing)  # one of h5py that is closed is False
        return True
    if not callable(getattr(kind, "fileno", None)):
        return False
    try:
        return _is_shared(thing.fileno())
    except Exception:  # closed, or a file in memory
        return False


def take_own_positions() -> None:
    """In a forked process: what is open for reading gets a position of its own, as if it were opened here.

    A file that a module opens when a record is first read is open already where records have been read for
    an analysis; in a run each worker opens it.
    """
    for link in Path("/proc/self/fd").iterdir():
        descriptor = int(link.name)
        with suppress(OSError):
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _is_shared(descriptor):
                continue
            own = os.open(link, fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND))
            os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(own, descriptor)
            os.close(own)


def _is_shared(descriptor: int) -> bool:
    """Whether processes that have a descriptor from one before them disturb each other by reading it."""
    if descriptor <= _STANDARD:
        return False
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
    return stat.S_ISSOCK(mode)


def _mapped() -> frozenset[str]:
    """Files in the memory of this process: what maps one keeps it open, and reads no position."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return frozenset()
    return frozenset(line.split(maxsplit=5)[5] for line in lines if "/" in line)


def _within(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        pairs = islice(thing.items(), _MOST_MEMBERS)
        yield from ((f"{name}[{key!r}]", value) for key, value in pairs)
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"{name}[{number}]", one) for number, one in enumerate(islice(thing, _MOST_MEMBERS)))
    elif isinstance(thing, partial):
        yield from ((name, one) for one in (thing.func, thing.args, thing.keywords))
    elif isinstance(thing, MethodType):
        yield name, thing.__self__
    elif not isinstance(thing, FunctionType):
        yield from ((f"{name}.{key}", value) for key, value in _attributes(thing).items())


def _attributes(thing: Any) -> dict[str, Any]:
    """Those of an object, with what its class has for all of them; without those of libraries' classes."""
    found: dict[str, Any] = {}
    for kind in type(thing).__mro__:
        if kind.__module__.partition(".")[0] not in ("builtins", "torch", "typing"):
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                with suppress(AttributeError):
                    found[slot] = getattr(thing, slot)
            found |= {key: value for key, value in vars(kind).items() if not key.startswith("__")}
    with suppress(TypeError):
        found |= vars(thing)
    return found
