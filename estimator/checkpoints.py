"""TensorFlow checkpoints of a model_dir: finding them, reading them, and writing them safely."""

from __future__ import annotations

import glob
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from cs_runtime.errors import ModelDirError
from cs_runtime.files import write_failure_cause, write_text
from cs_runtime.progress import report_checkpoint
from cs_toolkit.files import sync
from estimator.errors import CheckpointReadError, CheckpointWriteError, EstimatorError, essence

log = logging.getLogger("estimator")

CHECKPOINT_PREFIX = "model.ckpt"
STATE_FILE = "checkpoint"

# The file lists each checkpoint with 60 to some hundred bytes.
_MAX_STATE_BYTES = 4 << 20

# Prefix of the hidden folder in which a checkpoint is written.
_PARTIAL = ".saving-"

# Checkpoints that this process has found to be damaged.
_damaged: set[str] = set()

# Names, sizes and times of the files of a checkpoint.
_Files: TypeAlias = tuple[tuple[str, int | None, int], ...]

# Characters that TensorFlow takes for a pattern.
_PATTERN = frozenset("*?[\\")


def latest_checkpoint(model_dir: Path | str) -> str | None:
    """Return the prefix of the newest intact checkpoint in a directory, or None if it never had one.

    Every tensor of it has been compared with its checksum. Damaged checkpoints are skipped with a warning.

    Raises:
        CheckpointReadError: All checkpoints after step 0 are damaged or missing.
    """
    known = list_checkpoints(model_dir)
    problems: dict[str, str] = {}
    for prefix in known:
        # The checkpoint of step 0 replaces no damaged one: that would start the training run over.
        if problems and prefix.endswith("-0"):
            continue
        problem = _find_damage(prefix)
        if problem is None:
            for damaged, cause in problems.items():
                _warn_of_damage(damaged, _files_of(damaged), cause, prefix)
            return prefix
        problems[prefix] = problem
    state = Path(model_dir) / STATE_FILE
    if problems:
        newest, cause = next(iter(problems.items()))
        others = f", and the {len(problems) - 1} before it are damaged, too" if len(problems) > 1 else ""
        raise CheckpointReadError(newest, cause + others)
    if state.exists():
        raise CheckpointReadError(str(state), "it is damaged, and the directory has no checkpoint")
    return None


def list_checkpoints(model_dir: Path | str) -> list[str]:
    """Return the prefixes of the checkpoints in a directory, newest first, without checking them.

    Those that the `checkpoint` file lists come first, then others by their step.
    """
    directory = Path(model_dir)
    by_step = {
        int(path.stem.rpartition("-")[2]): str(path.with_suffix(""))
        for path in directory.glob(f"{CHECKPOINT_PREFIX}-*.index")
        if path.stem.rpartition("-")[2].isdecimal()
    }
    on_disk = [by_step[step] for step in sorted(by_step, reverse=True)]
    state = _read_state(directory)
    if state is None:
        if on_disk:
            log.warning(
                "the file 'checkpoint' in '%s' is damaged or missing: using %s", model_dir, on_disk[0]
            )
        return on_disk
    listed = [state.model_checkpoint_path, *reversed(state.all_model_checkpoint_paths)]
    # Other programs list absolute paths, which are wrong once the directory has been moved.
    here = [path if checkpoint_exists(path) else str(directory / Path(path).name) for path in listed]
    return list(dict.fromkeys([*here, *on_disk]))


def _read_state(directory: Path) -> Any:
    """Return the contents of the `checkpoint` file, None if it is damaged or missing."""
    import tensorflow as tf

    file = directory / STATE_FILE
    if not file.is_file() or file.stat().st_size > _MAX_STATE_BYTES:
        return None
    try:
        return tf.train.get_checkpoint_state(str(directory))
    except ValueError:
        return None


def _find_damage(prefix: str) -> str | None:
    """Compare all tensors of a checkpoint with their checksums; return the first difference, or None."""
    if not checkpoint_exists(prefix):
        return "its index file is missing"
    files = _files_of(prefix)
    for name, size, _ in files:
        if size is None and name.startswith(f"{Path(prefix).name}.data-"):
            return f"{name} is no file"  # TensorFlow would wait for the writer of a FIFO
    return _find_damage_of(prefix, files)


def _files_of(prefix: str) -> _Files:
    """Return the files of a checkpoint; a directory, a FIFO or a link to nothing has no size."""
    path, found = Path(prefix), []
    for file in sorted(path.parent.glob(f"{glob.escape(path.name)}.*")):
        status = file.stat() if file.is_file() else None
        found.append((file.name, status and status.st_size, status.st_mtime_ns if status else 0))
    return tuple(found)


# Several calls of a program look for the newest checkpoint: it is read once, and a damaged one gets one line.
# The files are an argument so that a changed checkpoint is read again.
@lru_cache(maxsize=64)
def _warn_of_damage(damaged: str, files: _Files, cause: str, intact: str) -> None:
    log.warning("checkpoint '%s' is damaged (%s): using '%s' instead", damaged, cause, intact)


@lru_cache(maxsize=64)
def _find_damage_of(prefix: str, files: _Files) -> str | None:
    import tensorflow as tf

    try:
        with open_checkpoint(prefix) as reader:
            for name, dtype in reader.get_variable_to_dtype_map().items():
                if dtype not in (tf.variant, tf.resource):
                    reader.get_tensor(name)
    except CheckpointReadError as error:
        _damaged.add(prefix)
        return error.cause
    _damaged.discard(prefix)
    return None


def resolve_checkpoint(given: str | None, model_dir: Path) -> str | None:
    """Return the prefix of a checkpoint given as prefix or directory, or else the newest one in `model_dir`.

    Raises:
        CheckpointReadError: The given directory has no checkpoint.
    """
    return latest_checkpoint(model_dir) if given is None else find_checkpoint(given)


def find_checkpoint(given: str) -> str:
    """Return the prefix of a checkpoint given as prefix or directory.

    Raises:
        CheckpointReadError: The directory has no checkpoint.
    """
    if not Path(given).is_dir():
        return given
    newest = latest_checkpoint(given)
    if newest is None:
        raise CheckpointReadError(given, "the directory has no checkpoint")
    return newest


def all_of(model_dir: Path | str) -> list[str]:
    """Return the prefixes of all existing checkpoints that the `checkpoint` file lists, oldest first."""
    state = _read_state(Path(model_dir))
    known = list(state.all_model_checkpoint_paths) if state else []
    return [prefix for prefix in known if checkpoint_exists(prefix)]


def checkpoint_exists(prefix: str) -> bool:
    """Return True if there is a complete checkpoint with this prefix."""
    try:
        return Path(f"{prefix}.index").is_file()  # the index file is written last
    except OSError:  # the name is too long, in a damaged file `checkpoint`
        return False


def checkpoint_step(prefix: str | None) -> int:
    """Return the global step in a checkpoint; 0 for None or if the checkpoint has none.

    Raises:
        CheckpointReadError: The checkpoint cannot be read.
    """
    if prefix is None:
        return 0
    with open_checkpoint(prefix) as reader:
        return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0


@contextmanager
def open_checkpoint(prefix: str) -> Iterator[Any]:
    """Open a checkpoint, or the newest one in a directory, for reading.

    Raises:
        CheckpointReadError: The checkpoint is missing or damaged.
    """
    import tensorflow as tf

    prefix = find_checkpoint(prefix)
    literal = literal_path(prefix)
    try:
        yield tf.train.load_checkpoint(literal)
    except EstimatorError:
        raise
    # For some damage the reader raises Python's own errors, or asks for an impossible size.
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError, MemoryError) as error:
        raise CheckpointReadError(prefix, essence(error).replace(literal, prefix)) from error


def literal_path(prefix: str) -> str:
    """Return a path to the same files that TensorFlow does not take for a pattern.

    TensorFlow takes the paths of checkpoints that it reads for patterns: those in a directory with a bracket
    or a backslash in its name do not exist for it.
    """
    path = Path(prefix)
    if not _PATTERN.intersection(str(path.parent)):
        return prefix
    try:
        status = path.parent.stat()
        return f"/proc/self/fd/{_open_directory(path.parent, status.st_dev, status.st_ino)}/{path.name}"
    except OSError:  # TensorFlow reports that it is missing
        return prefix


# Never closed: graphs contain such paths as constants.
@cache
def _open_directory(directory: Path, device: int, inode: int) -> int:
    return os.open(directory, os.O_PATH | os.O_DIRECTORY)


@contextmanager
def explain_restore_errors(prefix: str | None) -> Iterator[None]:
    """Turn errors of restoring a checkpoint in the body into messages that name it and the cause.

    Args:
        prefix: The checkpoint; None if the body restores none.

    Raises:
        CheckpointReadError: The checkpoint is missing, damaged, or lacks a variable of this model.
    """
    import tensorflow as tf

    try:
        yield
    except EstimatorError:
        raise
    except (tf.errors.OpError, ValueError) as error:
        if prefix is None:
            raise
        cause = essence(error).replace(literal_path(prefix), prefix)
        if checkpoint_exists(prefix):
            with open_checkpoint(prefix) as reader:
                known = reader.get_variable_to_shape_map()
            lacking = [v.op.name for v in tf.compat.v1.global_variables() if v.op.name not in known]
            if lacking:
                cause = f"it lacks the variables {', '.join(lacking)}"
        raise CheckpointReadError(prefix, cause) from error


def check_variables(prefix: str, variables: Iterable[Any], *, all_saved: bool = False) -> None:
    """Check that variables have the same shapes and types in a checkpoint and in a graph.

    Only the index of the checkpoint is read, so this is fast for any size.

    Args:
        prefix: The checkpoint.
        variables: The variables of the graph.
        all_saved: The checkpoint must have all of them.

    Raises:
        CheckpointReadError: The checkpoint is missing or damaged, or of another model.
    """
    # TensorFlow itself restores whatever shape the checkpoint has.
    with open_checkpoint(prefix) as reader:
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    variables = [variable for variable in variables if not variable._get_save_slice_info()]
    lacking = [variable.op.name for variable in variables if variable.op.name not in shapes]
    if lacking and all_saved:
        raise CheckpointReadError(prefix, f"it lacks the variables {', '.join(lacking)}")
    for variable in variables:
        name = variable.op.name
        if name not in shapes:
            continue
        if not variable.shape.is_compatible_with(shapes[name]):
            raise CheckpointReadError(
                prefix,
                f"variable '{name}' has the shape {tuple(shapes[name])} in it, "
                f"but {tuple(variable.shape.as_list())} in the model",
            )
        if all_saved and types[name] != variable.dtype.base_dtype:
            raise CheckpointReadError(
                prefix,
                f"variable '{name}' has the type {types[name].name} in it, "
                f"but {variable.dtype.base_dtype.name} in the model",
            )


def model_saver(scaffold: Any) -> Any:
    """Return the saver of the default graph: the user's, if the scaffold or the graph has one."""
    import tensorflow as tf

    v1 = tf.compat.v1
    if scaffold is not None and scaffold.saver is not None:
        return scaffold.saver
    for saver in v1.get_collection(v1.GraphKeys.SAVERS):
        return saver
    return v1.train.Saver(max_to_keep=None, allow_empty=True)


class CheckpointWriter:
    """Writes checkpoints `model.ckpt-N` and keeps the newest ones.

    Args:
        model_dir: The directory; created if missing.
        saver: Saver of the graph.
        graph: The graph, for the `.meta` file.
        keep_max: Number of checkpoints to keep, including those of earlier runs; 0 or None keeps all.
        listeners: `CheckpointSaverListener`s of the user.
        keep_every_hours: Interval in hours at which an older checkpoint is kept permanently; None for never.
    """

    def __init__(
        self,
        model_dir: Path,
        saver: Any,
        graph: Any,
        keep_max: int | None,
        listeners: Sequence[Any] = (),
        keep_every_hours: float | None = None,
    ) -> None:
        self._model_dir = model_dir
        self._saver = saver
        self._graph = graph
        self._keep_max = keep_max
        self._keep_every_s = 3600 * keep_every_hours if keep_every_hours else None
        self._kept_at_s = time.time()
        self._listeners = tuple(listeners)
        self.last_step: int | None = None
        self._meta_graph: tuple[Path, int] | None = None  # the newest one, and the version of its graph
        with graph.as_default():
            for listener in self._listeners:
                listener.begin()

    def write(self, session: Any, step: int) -> bool:
        """Write the variables of a session as the checkpoint of a step.

        Returns:
            True if a listener asks to stop.

        Raises:
            CheckpointWriteError: No space or no permission; no part of the new checkpoint is left.
        """
        for listener in self._listeners:
            listener.before_save(session, step)
        prefix = str(self._model_dir / f"{CHECKPOINT_PREFIX}-{step}")
        log.info("Saving checkpoints for %d into %s.", step, prefix)
        self._write_files(session, step, prefix)
        self.last_step = step
        report_checkpoint(step, prefix)
        # A list, not any() of a generator: every listener is called, even after one has asked to stop.
        asked = [bool(listener.after_save(session, step)) for listener in self._listeners]
        return any(asked)

    def _link_meta_graph(self, path: Path) -> None:
        """Write the meta graph; as another name of the last one if the graph has not changed since."""
        # Exporting the graph of BERT with two layers took 75 % of the time of a checkpoint.
        if self._meta_graph is not None and self._meta_graph[1] == self._graph.version:
            with suppress(OSError):  # no such file any more, or a file system without links
                path.hardlink_to(self._meta_graph[0])
                self._meta_graph = self._model_dir / path.name, self._graph.version
                return
        with self._graph.as_default():
            self._saver.export_meta_graph(str(path))
        self._meta_graph = self._model_dir / path.name, self._graph.version

    def end(self, session: Any, step: int) -> None:
        """Call the `end` methods of the listeners."""
        for listener in self._listeners:
            listener.end(session, step)

    def _write_files(self, session: Any, step: int, prefix: str) -> None:
        import tensorflow as tf

        # Damaged ones come first, so that they are the first to be removed.
        older = [known for known in all_of(self._model_dir) if known != prefix]
        older.sort(key=lambda known: known not in _damaged)
        rewritten = checkpoint_exists(prefix)
        # TensorFlow neither writes its files elsewhere first nor syncs them.
        folder = self._model_dir / f"{_PARTIAL}{step}"
        # Old checkpoints are removed only after data, meta graph and `checkpoint` file have been written, so
        # that the `checkpoint` file always lists checkpoints that exist.
        try:
            for left in self._model_dir.glob(f"{_PARTIAL}*"):  # by a run that was killed
                shutil.rmtree(left, ignore_errors=True)
            folder.mkdir(parents=True)
            with self._graph.as_default():
                self._saver.save(
                    session,
                    str(folder / CHECKPOINT_PREFIX),
                    global_step=step,
                    write_state=False,
                    write_meta_graph=False,
                )
            self._link_meta_graph(folder / f"{CHECKPOINT_PREFIX}-{step}.meta")
            files = sorted(folder.iterdir(), key=lambda file: file.suffix == ".index")
            for file in files:
                sync(file)
            for file in files:  # the index last: with it, a checkpoint is complete
                file.replace(self._model_dir / file.name)
                file.unlink(missing_ok=True)  # the rename does nothing if both names are links of one file
            folder.rmdir()
            kept = older[max(0, len(older) + 1 - self._keep_max) :] if self._keep_max else older
            # Names without directories, so that a model_dir can be moved.
            names = [Path(known).name for known in (*kept, prefix)]
            lines = [f'model_checkpoint_path: "{names[-1]}"']
            lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
            write_text(self._model_dir / STATE_FILE, "\n".join(lines) + "\n", durable=True)
        except (tf.errors.OpError, OSError, ValueError, RuntimeError, ModelDirError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            if not rewritten:
                _remove_checkpoint(prefix)
            cause = write_failure_cause(error) or essence(error)
            raise CheckpointWriteError(prefix, cause, older[-1] if older else None) from error
        for known in older:
            if known in kept:
                continue
            written_s = Path(f"{known}.index").stat().st_mtime
            if self._keep_every_s is None or written_s < self._kept_at_s + self._keep_every_s:
                _remove_checkpoint(known)
            else:  # the first one of an interval is kept permanently
                self._kept_at_s = written_s


def _remove_checkpoint(prefix: str) -> None:
    """Remove the files of a checkpoint, including temporary ones; log a warning if that fails."""
    path = Path(prefix)
    for found in path.parent.glob(f"{glob.escape(path.name)}.*"):
        try:
            found.unlink()
        except OSError as error:
            log.warning("cannot remove '%s': %s", found, error.strerror or error)
