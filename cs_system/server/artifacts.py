"""Artifacts on their way to the system: what a client offers, and the cache of executables sent before."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path

from cs_system.errors import ArtifactRefusedError, WireFormatError
from cs_toolkit.files import replace_file
from cs_toolkit.step import CompiledStep, Executable

log = logging.getLogger("cs_system.server")

# Larger executables are refused before they are sent.
MAX_ARTIFACT_BYTES = 2 << 30


class Offer:
    """One step that a client has offered. Executables of equal bytes are one here: they travel and lie once.

    Args:
        step: As the client has told it.
        fabric: Name of the system's fabric.
        store: What was sent before; keeps what comes.
        num_csx: Wafers that are to share a batch.
        max_wgt_servers: MemoryX processes that may share out the layers; None: all there are.

    Raises:
        ArtifactRefusedError: the step is for another fabric or too large, or its executables are no list of
            at least one, each with a name of its own.
        WireFormatError: a digest is none.
    """

    def __init__(
        self,
        step: CompiledStep,
        fabric: str,
        store: ExecutableStore,
        num_csx: int = 1,
        max_wgt_servers: int | None = None,
    ) -> None:
        _check(step, fabric)
        self.step = step
        self.num_csx, self.max_wgt_servers = num_csx, max_wgt_servers
        self._store = store
        self._executables = {executable.sha256: executable for executable in step.executables}
        self._here: dict[str, bytes] = {}
        self._coming: dict[str, bytearray] = {}

    def look_up(self) -> list[str]:
        """Takes from the store what it has.

        Returns:
            The digests of what has to be sent, in the order of the step; none: the offer is complete.
        """
        for sha256 in self._executables:
            data = self._store.get(sha256)
            if data is not None:
                self._here[sha256] = data
        return [sha256 for sha256 in self._executables if sha256 not in self._here]

    def add(self, sha256: str, data: bytes) -> None:
        """Takes the next bytes of an executable.

        Raises:
            WireFormatError: the executable was not asked for.
            ArtifactRefusedError: these are more bytes than it has.
        """
        executable = self._executables.get(sha256)
        if executable is None or sha256 in self._here:
            raise WireFormatError(
                f"got bytes of {sha256[:12]!r}, expected an executable of artifact {self.step.key[:12]} "
                "that the answer to its offer asks for"
            )
        coming = self._coming.setdefault(sha256, bytearray())
        coming += data
        if len(coming) > executable.size_bytes:
            self._check_bytes(executable, coming)

    def complete(self) -> None:
        """Checks all that has come, and keeps it for the next time.

        Raises:
            ArtifactRefusedError: an executable is not what was offered; those before it are kept.
        """
        for sha256, executable in self._executables.items():
            if sha256 not in self._here:
                coming = self._coming.pop(sha256, bytearray())
                self._check_bytes(executable, coming)
                self._here[sha256] = bytes(coming)
                self._store.put(sha256, self._here[sha256])

    def data(self) -> dict[str, bytes]:
        """The bytes of every executable by its name; after `complete`, or where nothing had to be sent."""
        return {executable.name: self._here[executable.sha256] for executable in self.step.executables}

    def _check_bytes(self, executable: Executable, data: bytearray) -> None:
        digest = hashlib.sha256(data).hexdigest()
        if digest != executable.sha256 or len(data) != executable.size_bytes:
            raise ArtifactRefusedError(
                f"executable '{executable.name}' of artifact {self.step.key[:12]} arrived damaged: got "
                f"{len(data)} bytes with SHA-256 {digest[:12]}, expected {executable.size_bytes} with "
                f"{executable.sha256[:12]}; try again"
            )


def _check(step: CompiledStep, fabric: str) -> None:
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
            "a name of its own; compile it again"
        )
    size = sum({executable.sha256: executable.size_bytes for executable in step.executables}.values())
    if size > MAX_ARTIFACT_BYTES:
        raise ArtifactRefusedError(
            f"the executables of {artifact} have {size:,} bytes, the system takes {MAX_ARTIFACT_BYTES:,}; "
            "move large constants of the model into variables"
        )
    for executable in step.executables:
        if len(executable.sha256) != 64 or not set(executable.sha256) <= set("0123456789abcdef"):
            raise WireFormatError(f"'{executable.sha256}' is not a SHA-256 digest")


def default_cache_dir() -> Path:
    """`cs_system` in the user's cache directory, as the XDG base directory specification has it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "cs_system"


class ExecutableStore:
    """Files named by their SHA-256; the longest unused ones go when the limit is passed.

    A cache and nothing more: what cannot be read or written is warned about and sent again.

    Args:
        directory: Created when missing; None keeps nothing.
        limit_bytes: Sum of the file sizes.
    """

    def __init__(self, directory: Path | None, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes

    def get(self, sha256: str) -> bytes | None:
        """The bytes with this digest; None when they are not here, or not intact."""
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
        # The modification time is the time of the last use; the access time may be off on this mount.
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, sha256: str, data: bytes) -> None:
        """Keeps `data`, whose digest the caller has checked."""
        if self._directory is None or len(data) > self._limit_bytes:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_file(self._directory / sha256, data)
            keep_newest(self._directory, self._limit_bytes)
        except OSError as error:
            log.warning("the executable is not kept in %s: %s", self._directory, error)


def keep_newest(directory: Path, limit_bytes: int) -> None:
    """Deletes the files of a directory with the oldest modification times until the rest fits the limit."""
    entries = []
    for path in directory.iterdir():
        # Another server on the same directory may have removed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            entries.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size
