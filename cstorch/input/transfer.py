"""The input function of a run, on its way from the chief to the workers."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from cs_runtime.options import RunSettings
from cs_toolkit.files import replace_file
from cstorch.errors import InputNotSentError, InputTransferError
from cstorch.precision import half_dtype, is_mixed

_SUFFIX = ".input"
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class TransferredInput:
    """What a worker needs to know of a run.

    Attributes:
        function: Of the user's; called with the arguments.
        args: Positional arguments.
        kwargs: Named ones.
        settings: Of the run.
        facts: What identifies program and input function on the chief.
        seed: Of the random numbers that the input draws.
        batches_ahead: See `cstorch.input.loader.DataLoader`.
        half_dtype: Name of the chief's 16-bit type.
        is_mixed: The chief computes steps in it, and the input may give tensors of it.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    settings: RunSettings
    facts: Mapping[str, str]
    seed: int
    batches_ahead: int = 0
    half_dtype: str = field(default_factory=half_dtype)
    is_mixed: bool = field(default_factory=is_mixed)


@dataclass(frozen=True)
class InputFiles:
    """The files of a job.

    Attributes:
        directory: On a file system that all tasks share.
        secret: Of the job.
    """

    directory: Path
    secret: str

    def write(self, run: int, handed: TransferredInput) -> None:
        """Hands the input of a run over.

        Raises:
            InputNotSentError: it refers to an object that belongs to this process, such as an open file.
            HandedInputError: the file cannot be written.
        """
        content = pickle.dumps({"sys.path": sys.path, "input": _by_value(handed)})
        try:
            self.make_directory()
            replace_file(self._path(run), self._digest(content) + content, mode=0o600)
        except OSError as error:
            raise InputTransferError(
                f"{self._path(run)}: the input function cannot be handed to the workers: {error.strerror}; "
                "expected a folder that can be written and that all tasks of the job share"
            ) from error

    def newest(self) -> int | None:
        """Number of the newest run; None before the first."""
        numbers = [int(path.stem) for path in self.directory.glob(f"*{_SUFFIX}") if path.stem.isdigit()]
        return max(numbers, default=None)

    def read(self, run: int) -> TransferredInput:
        """The input of a run.

        Raises:
            HandedInputError: the file is not of this job, or another user's or anybody's to write.
        """
        path = self._path(run)
        if path.stat().st_uid != os.geteuid():
            raise InputTransferError(
                f"{path}: belongs to another user, and is not read; expected what the chief of this job wrote"
            )
        data = path.read_bytes()
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if not hmac.compare_digest(digest, self._digest(content)):
            raise InputTransferError(
                f"{path}: not written by the chief of this job, or damaged: its digest does not agree with "
                "the secret of the job; start the job again"
            )
        outer = pickle.loads(content)
        sys.path += [entry for entry in outer["sys.path"] if entry not in sys.path]
        handed: TransferredInput = pickle.loads(outer["input"])
        return handed

    @property
    def end_file(self) -> Path:
        """Is there when no run follows."""
        return self.directory / "end"

    def make_directory(self) -> None:
        """Makes the folder of the files, for this user alone."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def end(self) -> None:
        """Says that no run follows, and takes the files away."""
        with suppress(OSError):  # the launcher ends workers too
            self.make_directory()
            self.end_file.touch()
            for path in self.directory.glob(f"*{_SUFFIX}"):
                path.unlink()

    def _path(self, run: int) -> Path:
        return self.directory / f"{run}{_SUFFIX}"

    def _digest(self, content: bytes) -> bytes:
        return hmac.digest(self.secret.encode(), content, "sha256")


def files_of_job(directory: Path, secret: str) -> InputFiles:
    """The files of one start of a job; a job that is started again in the same folder has others."""
    start = hashlib.sha256(f"inputs of {secret}".encode()).hexdigest()[:12]
    return InputFiles(directory / f"inputs-{start}", secret)


def _by_value(handed: TransferredInput) -> bytes:
    try:
        return pickle_by_value(handed)
    except Exception as error:
        raise InputNotSentError(
            find_unpicklable(handed.function, handed.args, handed.kwargs), error
        ) from error


_DEPTH = 8
"""So many steps from the input function a culprit is looked for."""


def pickle_by_value(value: Any) -> bytes:
    """An object as bytes, functions and classes of the program's own file by value.

    Raises:
        TypeError: it refers to an open file.
        Exception: what the pickling of an object raises.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, io.IOBase) and not isinstance(obj, io.BytesIO | io.StringIO):
                raise TypeError(f"cannot hand over the open file {getattr(obj, 'name', obj)!r}")
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def find_unpicklable(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The object behind an input function that `pickle_by_value` refuses, as "lock (a _thread.lock)"."""
    parts = [*((f"argument {i}", x) for i, x in enumerate(args)), *kwargs.items()]
    for name, value in [*parts, (getattr(function, "__qualname__", "the input function"), function)]:
        if not _goes(value):
            return _innermost(name, value, _DEPTH)
    return "what it refers to"


def _goes(value: Any) -> bool:
    try:
        pickle_by_value(value)
    except Exception:  # whatever an object raises that cannot be pickled
        return False
    return True


def _innermost(name: str, value: Any, depth: int) -> str:
    for part, inner in _parts(value) if depth else ():
        if not _goes(inner):
            return _innermost(f"{part} of {name}", inner, depth - 1)
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{name} (a {module}{kind.__qualname__})"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object refers to, with names that a user knows."""
    if isinstance(value, FunctionType):
        found = inspect.getclosurevars(value)
        yield from {**found.globals, **found.nonlocals}.items()
        yield from _enumerated("default", value.__defaults__ or ())
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, partial):
        yield "the function", value.func
        yield from _enumerated("argument", value.args)
        yield from value.keywords.items()
    elif isinstance(value, Mapping):
        yield from ((repr(key), inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _enumerated("element", value)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from vars(value).items()


def _enumerated(word: str, values: Sequence[Any] | set[Any] | frozenset[Any]) -> Iterator[tuple[str, Any]]:
    """ "argument 0", "argument 1" ..."""
    return ((f"{word} {i}", value) for i, value in enumerate(values))
