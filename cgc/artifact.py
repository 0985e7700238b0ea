"""Compile artifacts: directories `cs_<64 hex>` with all data of one compiled step.

The name is a digest of the inputs of the compile; `manifest.json` has the digest of every file. Opening an
artifact checks all of them, and writing one is atomic (`cgc.publishing`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

from pydantic import ValidationError

from cgc.artifact_floorplan import summarize_floorplan
from cgc.errors import CorruptArtifactError
from cgc.manifest import (
    FILES,
    FORMAT_VERSION,
    MANIFEST,
    PLAN,
    REPORT_JSON,
    SCHEDULE,
    Estimates,
    FileEntry,
    Manifest,
    executable_file,
)
from cgc.publishing import NAME_PREFIX, DirectoryLock, directory_lock, publish_directory
from cs_toolkit.files import MAX_JSON_BYTES, parse_json, read_file, read_json
from cs_toolkit.step import CompiledStep, Executable, StepInterface

_SOURCE_SUFFIXES = (".py", ".mlir", ".j2", ".js")
_OUTSIDE_OF_KEY = ("importers", "tools")


@dataclass(frozen=True)
class Artifact:
    """An artifact whose files were intact when it was opened.

    Attributes:
        path: the directory.
        manifest: its manifest.
    """

    path: Path
    manifest: Manifest

    @property
    def key(self) -> str:
        """The 64 hex digits of the name."""
        return self.manifest.key

    @property
    def interface(self) -> StepInterface:
        """Inputs, state and outputs of the whole step."""
        return self.manifest.interface.to_step()

    @property
    def estimates(self) -> Estimates:
        """Predictions of the performance model for the wafer."""
        return self.manifest.estimates

    @property
    def step(self) -> CompiledStep:
        """The description of the step for the CS system; raises as `read` does."""
        manifest = self.manifest
        executables = []
        for entry in manifest.executables:
            file = manifest.files[executable_file(entry.name)]
            executables.append(
                Executable(entry.name, entry.interface.to_step(), file.sha256, file.size_bytes)
            )
        return CompiledStep(
            self.key,
            manifest.fabric.name,
            manifest.estimates.execution,
            self.interface,
            tuple(executables),
            self.read(SCHEDULE).decode() if SCHEDULE in manifest.files else "",
            summarize_floorplan(self.read(REPORT_JSON), self.read(PLAN) if PLAN in manifest.files else None),
        )

    def executable_bytes(self, name: str) -> bytes:
        """Return the bytes of an executable; raises as `read` does."""
        return self.read(executable_file(name))

    def read(self, name: str) -> bytes:
        """Return the content of one file.

        Raises:
            CorruptArtifactError: it is missing, or has changed since it was written.
        """
        return _checked_file(self.path, name, self.manifest.files[name])


def artifact_path(compile_dir: Path, key: str) -> Path:
    """Return the path of the artifact with a key."""
    return compile_dir / f"{NAME_PREFIX}{key}"


@dataclass(frozen=True)
class Toolchain:
    """The versions that determine the result of a compile.

    Attributes:
        tool: `tool_version()`.
        jax: version of JAX, which lowers the ops. Another version may round differently, and a much older one
            may be unable to read the executable.
        format: FORMAT_VERSION.
    """

    tool: str
    jax: str
    format: int

    @classmethod
    def current(cls) -> Toolchain:
        """Return the toolchain of this process."""
        return cls(tool_version(), metadata.version("jax"), FORMAT_VERSION)

    def __str__(self) -> str:
        return f"{self.tool} with jax {self.jax}"


def artifact_key(
    digest: str,
    layers: Sequence[tuple[Sequence[str], int]],
    options: Mapping[str, Any],
    fabric: Mapping[str, Any],
    toolchain: Toolchain | None = None,
) -> str:
    """Return the digest that names an artifact: equal if and only if a recompile would give the same.

    Args:
        digest: `cgc.cirh.op_table.module_digest` of the original module.
        layers: layers of its ops in order, run-length encoded; the report names kernels by them.
        options: choices of the user, as JSON values.
        fabric: the fabric, as JSON values.
        toolchain: the compiling toolchain; None for that of this process.

    Returns:
        64 hex digits.
    """
    toolchain = toolchain or Toolchain.current()
    parts = {
        "cirh_sha256": digest,
        "layers": layers,
        "options": options,
        "fabric": fabric,
        "tool": toolchain.tool,
        "jax": toolchain.jax,
        "format": toolchain.format,
    }
    return _sha256(json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False).encode())


def find_older(compile_dir: Path, key_of: Callable[[Toolchain], str]) -> tuple[Path, Toolchain] | None:
    """Find an artifact of the program that another toolchain has compiled; return it with the toolchain.

    Directories with an unreadable manifest are skipped: the result is only used in a message.

    Args:
        compile_dir: the folder of artifacts.
        key_of: returns the program's `artifact_key` for a toolchain.
    """
    for manifest in sorted(compile_dir.glob(f"{NAME_PREFIX}*/{MANIFEST}")):
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            fields = read_json(manifest)
            made_by = Toolchain(fields["tool_version"], fields["versions"]["jax"], fields["format_version"])
            if manifest.parent.name == f"{NAME_PREFIX}{key_of(made_by)}":
                return manifest.parent, made_by
    return None


@functools.cache
def tool_version() -> str:
    """Return the version of the compiler: a digest of its sources, so that a changed one reuses nothing."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for relative in compiler_sources():
        digest.update(f"{relative.as_posix()}\0".encode())
        digest.update(hashlib.sha256((root / relative).read_bytes()).digest())
    return f"cgc-{digest.hexdigest()[:16]}"


def compiler_sources() -> list[Path]:
    """Return the files that determine the result of a compile, relative to this package, sorted.

    The importers are left out, because the module that they make is part of the key. So are style sheets of
    the report and command line tools.
    """
    root = Path(__file__).parent
    sources = (path.relative_to(root) for path in root.rglob("*") if path.suffix in _SOURCE_SUFFIXES)
    return sorted(path for path in sources if path.parts[0] not in _OUTSIDE_OF_KEY)


def tool_versions() -> dict[str, str]:
    """Return the versions that the manifest records for the reader."""
    packages = ("jax", "jaxlib", "xdsl")
    return {"python": python_version(), **{name: metadata.version(name) for name in packages}}


def artifact_lock(
    compile_dir: Path, key: str, timeout_s: float, on_wait: Callable[[str], None] | None = None
) -> AbstractContextManager[DirectoryLock]:
    """Let one task at a time compile for a key (`cgc.publishing.directory_lock`)."""
    return directory_lock(artifact_path(compile_dir, key), timeout_s, on_wait)


def publish(lock: DirectoryLock, manifest: Manifest, files: Mapping[str, bytes]) -> Artifact:
    """Write an artifact under its name, replacing an existing one.

    Args:
        lock: `artifact_lock` of the manifest's key.
        manifest: its `files` are `file_entries(files)`.
        files: all of `cgc.manifest.FILES` for its mode of execution, and the file of every executable.

    Raises:
        ArtifactWriteError: the disk is full, or permission is missing; no partial artifact is left.
    """
    text = manifest.model_dump_json(indent=1) + "\n"
    path = publish_directory(lock, {**files, MANIFEST: text.encode()})
    return Artifact(path, manifest)


def file_entries(files: Mapping[str, bytes]) -> dict[str, FileEntry]:
    """Return digest and size of every file."""
    return {
        name: FileEntry(sha256=_sha256(data), size_bytes=len(data)) for name, data in sorted(files.items())
    }


def open_artifact(path: Path | str) -> Artifact:
    """Open an artifact after checking its manifest, its name and every digest.

    Raises:
        CorruptArtifactError: names the file and what is wrong with it.
    """
    path = Path(path)
    manifest = parse_manifest(_read_file(path, MANIFEST, MAX_JSON_BYTES), path)
    if path.name != f"{NAME_PREFIX}{manifest.key}":
        raise CorruptArtifactError(
            f"{path}: {MANIFEST} says that this is {NAME_PREFIX}{manifest.key}; the directory was renamed"
        )
    for name, entry in manifest.files.items():
        _checked_file(path, name, entry)
    return Artifact(path, manifest)


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """Parse a manifest; `path` of the artifact is for messages.

    Raises:
        CorruptArtifactError: invalid JSON, another format version, or invalid fields.
    """
    where = path / MANIFEST
    try:
        fields = parse_json(data)
    except ValueError as error:
        raise CorruptArtifactError(f"{where}: not JSON ({error})") from error
    version = fields.get("format_version") if isinstance(fields, dict) else None
    if version != FORMAT_VERSION:
        raise CorruptArtifactError(f"{where}: format_version is {version!r}, expected {FORMAT_VERSION}")
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CorruptArtifactError(f"{where}: {place}: {first['msg']}, got {first['input']!r:.80}") from error
    wanted = (
        *FILES[manifest.estimates.execution],
        *(executable_file(entry.name) for entry in manifest.executables),
    )
    missing = [name for name in wanted if name not in manifest.files]
    if missing:
        raise CorruptArtifactError(f"{where}: files lacks {', '.join(missing)}")
    return manifest


def _checked_file(path: Path, name: str, entry: FileEntry) -> bytes:
    data = _read_file(path, name, entry.size_bytes)
    if len(data) != entry.size_bytes:
        raise CorruptArtifactError(f"{path / name}: size is {len(data)} bytes, expected {entry.size_bytes}")
    digest = _sha256(data)
    if digest != entry.sha256:
        raise CorruptArtifactError(f"{path / name}: SHA-256 is {digest}, expected {entry.sha256}")
    return data


def _read_file(path: Path, name: str, max_bytes: int) -> bytes:
    try:
        return read_file(path / name, max_bytes)
    except OSError as error:
        raise CorruptArtifactError(f"{path / name}: cannot be read: {error.strerror or error}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
