"""Transfer of the input function of a run from the chief to the workers, in files of the job's directory.

A file is read only if its digest matches the job's secret, so nobody else can make a worker run code.
"""

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
from cstorch.tracing.precision import half_dtype, is_mixed

_SUFFIX = ".input"
_DIGEST_BYTES = hashlib.sha256().digest_size

_MAX_DEPTH = 8  # references followed from the input function to find an object that cannot be pickled


@dataclass(frozen=True)
class TransferredInput:
    """The input function and the settings of a run, as a worker gets them.

    Attributes:
        function: Input function of the program, called with the arguments.
        args: Positional arguments.
        kwargs: Keyword arguments.
        settings: Settings of the run.
        facts: Program and input function, as the chief identifies them.
        seed: Seed of the random numbers that the input draws.
        batches_ahead: Batches that a training run skips in addition to its steps (`InputLoader`).
        half_dtype: Name of the chief's 16-bit type.
        is_mixed: The chief computes steps in it, and the input may return tensors of it.
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
    """The files of a job, one for each run.

    Attributes:
        directory: Directory on a file system that all tasks share.
        secret: Secret of the job.
    """

    directory: Path
    secret: str

    def write(self, run: int, transferred: TransferredInput) -> None:
        """Write the input of a run.

        Raises:
            InputNotSentError: It refers to an object that belongs to this process, such as an open file.
            InputTransferError: The file cannot be written.
        """
        try:
            pickled = pickle_by_value(transferred)
        except Exception as error:
            culprit = find_unpicklable(transferred.function, transferred.args, transferred.kwargs)
            raise InputNotSentError(culprit, error) from error
        content = pickle.dumps({"sys.path": sys.path, "input": pickled})
        try:
            self.make_directory()
            replace_file(self._path(run), self._digest(content) + content, mode=0o600)
        except OSError as error:
            raise InputTransferError(
                f"{self._path(run)}: the input function cannot be handed to the workers: {error.strerror}; "
                "expected a folder that can be written and that all tasks of the job share"
            ) from error

    def newest(self) -> int | None:
        """Return the number of the newest run; None before the first."""
        numbers = [int(path.stem) for path in self.directory.glob(f"*{_SUFFIX}") if path.stem.isdigit()]
        return max(numbers, default=None)

    def read(self, run: int) -> TransferredInput:
        """Read the input of a run.

        Raises:
            InputTransferError: The file belongs to another user, or was not written by this job.
        """
        path = self._path(run)
        if path.stat().st_uid != os.geteuid():
            raise InputTransferError(
                f"{path}: belongs to another user, and is not read; expected a file of this job's chief"
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
        transferred: TransferredInput = pickle.loads(outer["input"])
        return transferred

    @property
    def end_file(self) -> Path:
        """The file that exists once no further run follows."""
        return self.directory / "end"

    def make_directory(self) -> None:
        """Create the directory, accessible to this user only."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def end(self) -> None:
        """Tell the workers that no further run follows, and remove the files."""
        with suppress(OSError):  # the launcher also ends the workers
            self.make_directory()
            self.end_file.touch()
            for path in self.directory.glob(f"*{_SUFFIX}"):
                path.unlink()

    def _path(self, run: int) -> Path:
        return self.directory / f"{run}{_SUFFIX}"

    def _digest(self, content: bytes) -> bytes:
        return hmac.digest(self.secret.encode(), content, "sha256")


def files_of_job(directory: Path, secret: str) -> InputFiles:
    """Return the files of one start of a job; a restart in the same directory has other files."""
    start = hashlib.sha256(f"inputs of {secret}".encode()).hexdigest()[:12]
    return InputFiles(directory / f"inputs-{start}", secret)


def pickle_by_value(value: Any) -> bytes:
    """Pickle an object; functions and classes of the program's main file are pickled by value.

    Raises:
        TypeError: It refers to an open file.
        Exception: Any error of an object's own pickling.
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
    """Describe the object that keeps an input function from being pickled, as "lock (a _thread.lock)"."""
    parts = [*((f"argument {i}", x) for i, x in enumerate(args)), *kwargs.items()]
    for name, value in [*parts, (getattr(function, "__qualname__", "the input function"), function)]:
        if not _can_pickle(value):
            return _find_innermost(name, value, _MAX_DEPTH)
    return "an object that it refers to"


def _can_pickle(value: Any) -> bool:
    try:
        pickle_by_value(value)
    except Exception:  # objects raise any error in their own pickling
        return False
    return True


def _find_innermost(name: str, value: Any, depth: int) -> str:
    for part, inner in _references(value) if depth else ():
        if not _can_pickle(inner):
            return _find_innermost(f"{part} of {name}", inner, depth - 1)
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{name} (a {module}{kind.__qualname__})"


def _references(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that an object refers to, by names that a user knows."""
    if isinstance(value, FunctionType):
        found = inspect.getclosurevars(value)
        yield from {**found.globals, **found.nonlocals}.items()
        yield from _enumerate("default", value.__defaults__ or ())
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, partial):
        yield "the function", value.func
        yield from _enumerate("argument", value.args)
        yield from value.keywords.items()
    elif isinstance(value, Mapping):
        yield from ((repr(key), inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _enumerate("element", value)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from vars(value).items()


def _enumerate(word: str, values: Sequence[Any] | set[Any] | frozenset[Any]) -> Iterator[tuple[str, Any]]:
    """Yield values with names such as "argument 0", "argument 1"."""
    return ((f"{word} {i}", value) for i, value in enumerate(values))
