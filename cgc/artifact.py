"""Compile artifacts: directories `cs_<64 hex>` that hold everything about one compiled step, as data.

The name is a digest of what was compiled and with what; `manifest.json` holds the digest of every file.
An artifact is opened only if all of them agree, and appears under its name complete or not at all
(`cgc.publishing`).
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

from cgc.errors import CorruptArtifactError
from cgc.manifest import (
    FILES,
    FORMAT_VERSION,
    MANIFEST,
    SCHEDULE,
    Estimates,
    FileEntry,
    Manifest,
    executable_file,
)
from cgc.publishing import NAME_PREFIX, DirectoryLock, directory_lock, publish_directory
from cs_toolkit.step import CompiledStep, Executable, StepInterface

_SOURCE_SUFFIXES = (".py", ".mlir", ".j2", ".js")
_OUTSIDE_OF_KEY = ("importers", "tools")


@dataclass(frozen=True)
class Artifact:
    """An artifact whose files were found intact when it was opened.

    Attributes:
        path: the directory.
        manifest: what it holds.
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
        """What the performance model predicts for the wafer."""
        return self.manifest.estimates

    @property
    def step(self) -> CompiledStep:
        """What the CS system is told of the step; raises as `read` does."""
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
        )

    def executable_bytes(self, name: str) -> bytes:
        """The bytes of an executable; raises as `read` does."""
        return self.read(executable_file(name))

    def read(self, name: str) -> bytes:
        """The content of one file.

        Raises:
            CorruptArtifactError: it is missing, or has changed since it was written.
        """
        return _checked_file(self.path, name, self.manifest.files[name])


def artifact_path(compile_dir: Path, key: str) -> Path:
    """Where the artifact of a key lies."""
    return compile_dir / f"{NAME_PREFIX}{key}"


@dataclass(frozen=True)
class Toolchain:
    """What compiled an artifact, as far as it decides what comes out.

    Attributes:
        tool: `tool_version()`.
        jax: its version: the executable is what this jax lowers the ops to, another version may round
            differently, and one that is much older may not be able to read it.
        format: FORMAT_VERSION.
    """

    tool: str
    jax: str
    format: int

    @classmethod
    def current(cls) -> Toolchain:
        """The one that runs."""
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
    """The digest that names an artifact: equal exactly if compiling again would give the same.

    Args:
        digest: `cgc.cirh.op_table.module_digest` of the module as it was given to the compiler.
        layers: of its ops in order, each with how many have it in a row; the report names kernels by them.
        options: what the user chose, as JSON values.
        fabric: the fabric, as JSON values.
        toolchain: what compiles it; None for the one that runs.

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
    """The artifact of a program that another version of the compiler made, and that version.

    A directory whose manifest does not tell is passed over: the answer is for a message.

    Args:
        compile_dir: where artifacts lie.
        key_of: the program's `artifact_key` with a toolchain.
    """
    for manifest in sorted(compile_dir.glob(f"{NAME_PREFIX}*/{MANIFEST}")):
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            fields = json.loads(manifest.read_bytes())
            made_by = Toolchain(fields["tool_version"], fields["versions"]["jax"], fields["format_version"])
            if manifest.parent.name == f"{NAME_PREFIX}{key_of(made_by)}":
                return manifest.parent, made_by
    return None


@functools.cache
def tool_version() -> str:
    """The compiler's version: a digest of its sources, so that no change of it reuses what it made before."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for relative in compiler_sources():
        digest.update(f"{relative.as_posix()}\0".encode())
        digest.update(hashlib.sha256((root / relative).read_bytes()).digest())
    return f"cgc-{digest.hexdigest()[:16]}"


def compiler_sources() -> list[Path]:
    """The files that decide what a compilation gives, relative to this package, sorted.

    The importers are left out: what they produce, the module, is in the key itself. So are the colors of
    the report's page, and programs beside the compiler.
    """
    root = Path(__file__).parent
    sources = (path.relative_to(root) for path in root.rglob("*") if path.suffix in _SOURCE_SUFFIXES)
    return sorted(path for path in sources if path.parts[0] not in _OUTSIDE_OF_KEY)


def tool_versions() -> dict[str, str]:
    """Versions that the manifest records, for readers."""
    packages = ("jax", "jaxlib", "xdsl")
    return {"python": python_version(), **{name: metadata.version(name) for name in packages}}


def artifact_lock(
    compile_dir: Path, key: str, timeout_s: float, on_wait: Callable[[str], None] | None = None
) -> AbstractContextManager[DirectoryLock]:
    """Lets one task at a time compile for a key; see `cgc.publishing.directory_lock`."""
    return directory_lock(artifact_path(compile_dir, key), timeout_s, on_wait)


def publish(lock: DirectoryLock, manifest: Manifest, files: Mapping[str, bytes]) -> Artifact:
    """Writes an artifact under its name, in the place of one that may be there.

    Args:
        lock: of `artifact_lock` for the manifest's key.
        manifest: its `files` are `file_entries(files)`.
        files: all of `cgc.manifest.FILES` for its mode of execution, and the file of every executable.

    Raises:
        ArtifactWriteError: the disk is full, or permission is missing; nothing half-written is left.
    """
    text = manifest.model_dump_json(indent=1) + "\n"
    path = publish_directory(lock, {**files, MANIFEST: text.encode()})
    return Artifact(path, manifest)


def file_entries(files: Mapping[str, bytes]) -> dict[str, FileEntry]:
    """Digest and size of every file."""
    return {
        name: FileEntry(sha256=_sha256(data), size_bytes=len(data)) for name, data in sorted(files.items())
    }


def open_artifact(path: Path | str) -> Artifact:
    """Opens an artifact after checking its manifest, its name and every digest.

    Raises:
        CorruptArtifactError: names the file and what is wrong with it.
    """
    path = Path(path)
    manifest = parse_manifest(_read_file(path, MANIFEST), path)
    if path.name != f"{NAME_PREFIX}{manifest.key}":
        raise CorruptArtifactError(
            f"{path}: {MANIFEST} says that this is {NAME_PREFIX}{manifest.key}; the directory was renamed"
        )
    for name, entry in manifest.files.items():
        _checked_file(path, name, entry)
    return Artifact(path, manifest)


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """A manifest from its bytes; `path` is the artifact's, for messages.

    Raises:
        CorruptArtifactError: no JSON, another format version, or fields that are wrong.
    """
    where = path / MANIFEST
    try:
        fields = json.loads(data)
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
    data = _read_file(path, name)
    if len(data) != entry.size_bytes:
        raise CorruptArtifactError(f"{path / name}: size is {len(data)} bytes, expected {entry.size_bytes}")
    digest = _sha256(data)
    if digest != entry.sha256:
        raise CorruptArtifactError(f"{path / name}: SHA-256 is {digest}, expected {entry.sha256}")
    return data


def _read_file(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise CorruptArtifactError(f"{path / name}: cannot be read: {error.strerror or error}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
