"""The input function of a run, from the chief to the workers: one file for each run in the job's directory.

Functions of a program's own file, lambdas and closures go by value, with the objects that they refer to. A
file is read again only with a digest by the job's secret: nobody else can have a worker run what it wrote.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cs_runtime.options import RunSettings
from cs_toolkit.files import replace_file
from cstorch.by_value import culprit, pickled
from cstorch.errors import HandedInputError, InputNotSentError
from cstorch.precision import half_dtype, is_mixed

_SUFFIX = ".input"
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class HandedInput:
    """What a worker needs to know of a run.

    Attributes:
        function: Of the user's; called with the arguments.
        args: Positional arguments.
        kwargs: Named ones.
        settings: Of the run.
        facts: What identifies program and input function on the chief.
        seed: Of the random numbers that the input draws.
        batches_ahead: See `cstorch.data.DataLoader`.
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

    def write(self, run: int, handed: HandedInput) -> None:
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
            raise HandedInputError(
                f"{self._path(run)}: the input function cannot be handed to the workers: {error.strerror}; "
                "expected a folder that can be written and that all tasks of the job share"
            ) from error

    def newest(self) -> int | None:
        """Number of the newest run; None before the first."""
        numbers = [int(path.stem) for path in self.directory.glob(f"*{_SUFFIX}") if path.stem.isdigit()]
        return max(numbers, default=None)

    def read(self, run: int) -> HandedInput:
        """The input of a run.

        Raises:
            HandedInputError: the file is not of this job, or another user's or anybody's to write.
        """
        path = self._path(run)
        if path.stat().st_uid != os.geteuid():
            raise HandedInputError(
                f"{path}: belongs to another user, and is not read; expected what the chief of this job wrote"
            )
        data = path.read_bytes()
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if not hmac.compare_digest(digest, self._digest(content)):
            raise HandedInputError(
                f"{path}: not written by the chief of this job, or damaged: its digest does not agree with "
                "the secret of the job; start the job again"
            )
        outer = pickle.loads(content)
        sys.path += [entry for entry in outer["sys.path"] if entry not in sys.path]
        handed: HandedInput = pickle.loads(outer["input"])
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


def _by_value(handed: HandedInput) -> bytes:
    try:
        return pickled(handed)
    except Exception as error:
        raise InputNotSentError(culprit(handed.function, handed.args, handed.kwargs), error) from error
