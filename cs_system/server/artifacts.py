"""Artifacts offered by clients, and the cache of executables that were sent before."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path

from cs_system.errors import ArtifactRefusedError, WireFormatError
from cs_toolkit.execution_options import ONE_WAFER, SystemShare
from cs_toolkit.files import keep_newest, replace_file, user_cache_dir
from cs_toolkit.step import CompiledStep, Executable

log = logging.getLogger("cs_system.server")

# Larger artifacts are refused before their bytes are sent.
MAX_ARTIFACT_BYTES = 2 << 30


class Offer:
    """A step that a client has offered. Executables with equal bytes are sent and stored only once.

    Args:
        step: The step as the client described it.
        fabric: Name of the system's fabric.
        store: Cache of executables that were sent before; receives the new ones.
        share: The part of the system that runs the step.

    Raises:
        ArtifactRefusedError: the step is for another fabric or too large, or its executables are not a list
            of at least one with unique names.
        WireFormatError: the key or a digest is malformed.
    """

    def __init__(
        self,
        step: CompiledStep,
        fabric: str,
        store: ExecutableStore,
        share: SystemShare = ONE_WAFER,
    ) -> None:
        _check(step, fabric)
        self.step = step
        self.share = share
        self._store = store
        self._executables = {executable.sha256: executable for executable in step.executables}
        self._available: dict[str, bytes] = {}
        self._arriving: dict[str, bytearray] = {}

    def look_up(self) -> list[str]:
        """Take the available executables from the store.

        Returns:
            The digests of the executables that must be sent, in the order of the step; none: the offer is
            complete.
        """
        for sha256 in self._executables:
            data = self._store.get(sha256)
            if data is not None:
                self._available[sha256] = data
        return [sha256 for sha256 in self._executables if sha256 not in self._available]

    def add(self, sha256: str, data: bytes) -> None:
        """Add the next bytes of an executable.

        Raises:
            WireFormatError: the executable was not requested.
            ArtifactRefusedError: there are more bytes than the executable has.
        """
        executable = self._executables.get(sha256)
        if executable is None or sha256 in self._available:
            raise WireFormatError(
                f"got bytes of {sha256[:12]!r}, expected an executable of artifact {self.step.key[:12]} "
                "that the answer to its offer asks for"
            )
        arriving = self._arriving.setdefault(sha256, bytearray())
        arriving += data
        if len(arriving) > executable.size_bytes:
            self._check_bytes(executable, arriving)

    def complete(self) -> None:
        """Check everything that has arrived, and store it for the next time.

        Raises:
            ArtifactRefusedError: an executable is not the one offered; those before it are stored.
        """
        for sha256, executable in self._executables.items():
            if sha256 not in self._available:
                arriving = self._arriving.pop(sha256, bytearray())
                self._check_bytes(executable, arriving)
                self._available[sha256] = bytes(arriving)
                self._store.put(sha256, self._available[sha256])

    def data(self) -> dict[str, bytes]:
        """Return the bytes of every executable by its name, once the offer is complete."""
        return {executable.name: self._available[executable.sha256] for executable in self.step.executables}

    def _check_bytes(self, executable: Executable, data: bytearray) -> None:
        digest = hashlib.sha256(data).hexdigest()
        if digest != executable.sha256 or len(data) != executable.size_bytes:
            raise ArtifactRefusedError(
                f"executable '{executable.name}' of artifact {self.step.key[:12]} arrived damaged: got "
                f"{len(data)} bytes with SHA-256 {digest[:12]}, expected {executable.size_bytes} with "
                f"{executable.sha256[:12]}; try again"
            )


def _check(step: CompiledStep, fabric: str) -> None:
    _check_digest(step.key)
    artifact = f"artifact {step.key[:12]}"
    if step.fabric != fabric:
        raise ArtifactRefusedError(
            f"{artifact} is compiled for fabric '{step.fabric}', this system has '{fabric}'; "
            "compile it with cs_ip, the address of this system"
        )
    names = [executable.name for executable in step.executables]
    if not names or len(set(names)) < len(names):
        raise ArtifactRefusedError(
            f"{artifact} has the executables {', '.join(names) or 'none'}, expected at least one, each with "
            "a unique name; compile it again"
        )
    size = sum({executable.sha256: executable.size_bytes for executable in step.executables}.values())
    if size > MAX_ARTIFACT_BYTES:
        raise ArtifactRefusedError(
            f"the executables of {artifact} have {size:,} bytes, the system takes {MAX_ARTIFACT_BYTES:,}; "
            "move large constants of the model into variables"
        )
    for executable in step.executables:
        _check_digest(executable.sha256)


def _check_digest(text: str) -> None:
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise WireFormatError(f"{text[:80]!r} is not a SHA-256 digest")


def default_cache_dir() -> Path:
    """Return `cs_system` in the user's cache directory."""
    return user_cache_dir() / "cs_system"


class ExecutableStore:
    """A cache of executables on disk, in files named by their SHA-256, with least-recently-used eviction.

    A file that cannot be read or written only costs a warning: the executable is sent again.

    Args:
        directory: Created when missing; None stores nothing.
        limit_bytes: Limit for the sum of the file sizes.
    """

    def __init__(self, directory: Path | None, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes

    def get(self, sha256: str) -> bytes | None:
        """Return the bytes with this digest, or None if they are not stored, or damaged."""
        if self._directory is None:
            return None
        path = self._directory / sha256
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != sha256:
            log.warning("%s is damaged; the executable is sent again", path)
            path.unlink(missing_ok=True)
            return None
        # The modification time records the last use, as the access time may be disabled by mount options.
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, sha256: str, data: bytes) -> None:
        """Store `data`, whose digest the caller has checked."""
        if self._directory is None or len(data) > self._limit_bytes:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_file(self._directory / sha256, data)
            keep_newest(self._directory, self._limit_bytes)
        except OSError as error:
            log.warning("the executable cannot be stored in %s: %s", self._directory, error)
