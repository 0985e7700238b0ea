"""Saved states of input iterators, from which a run resumes without reading its input again.

With a shuffle, no arithmetic gives the next batch. TensorFlow can save the state of an iterator, with the
buffers of its shuffles and prefetches, and restore it bit for bit. A worker saves it at the steps of
checkpoints and every ten seconds, in at most 1 % of its time. It keeps the newest states, and one from before
the newest checkpoint. A state only saves time: if none fits (another program, number of shards or version of
TensorFlow), the input is read up to its position.
"""

from __future__ import annotations

import hashlib
import logging
import resource
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cs_stream.order import InputOrder
from estimator.checkpoints import list_checkpoints, literal_path

log = logging.getLogger("estimator")

FOLDER = "input_state"
SAVE_EVERY_S = 10.0
SHARE_OF_TIME = 0.01
# Largest memory of an input whose state is saved; saving needs about as much memory again.
LARGEST_BYTES = 1 << 30
# Number of newest states to keep: enough that the next checkpoint follows one of them.
_NEWEST = 3
# Policy to fail on random numbers and Python functions, whose state TensorFlow does not save.
_REFUSE_OUTER_STATE = 2


@dataclass(frozen=True)
class StateFolder:
    """The folder of the iterator states of a task.

    Attributes:
        model_dir: Directory of checkpoints.
        shard: Index of the task among those that read input.
        num_shards: Number of tasks that read input.
        checkpoint_steps: Steps between two checkpoints; None if checkpoints are due by time.
        every_s: Seconds between two states, at least.
    """

    model_dir: Path
    shard: int
    num_shards: int
    checkpoint_steps: int | None = None
    every_s: float = SAVE_EVERY_S

    @property
    def path(self) -> Path:
        """Path of the folder."""
        return self.model_dir / FOLDER / f"worker-{self.shard}-of-{self.num_shards}"

    def is_checkpoint_due(self, batches: int) -> bool:
        """Return True if a checkpoint is due after training has used this number of batches of this task."""
        next_step = batches * self.num_shards + self.shard
        every = self.checkpoint_steps
        return bool(every) and next_step % (every or 1) < min(self.num_shards, next_step)

    def batches_of_checkpoint(self) -> int:
        """Return the number of batches of this task that the newest checkpoint covers."""
        newest = next(iter(list_checkpoints(self.model_dir)), "")
        step = newest.rpartition("-")[2]
        order = InputOrder(self.num_shards, self.num_shards)
        return order.count_before(self.shard, int(step)) if step.isdigit() else 0

    def clear_others(self) -> None:
        """Remove the states of runs with another number of tasks; the first task does it for all."""
        for other in self.path.parent.glob("worker-*-of-*") if self.shard == 0 else ():
            if not other.name.endswith(f"-of-{self.num_shards}"):
                shutil.rmtree(other, ignore_errors=True)


class IteratorStates:
    """Saves and restores the states of an iterator, with ops that it adds to the default graph.

    Args:
        folder: The folder of the states.
        iterator: An initializable iterator; the graph holds nothing but the input.
    """

    def __init__(self, folder: StateFolder, iterator: Any) -> None:
        import tensorflow as tf

        self._folder = folder
        self._program = program_digest(tf.compat.v1.get_default_graph())
        self._prefix = tf.compat.v1.placeholder(tf.string, [])
        handle = iterator._iterator_resource
        state = tf.raw_ops.SerializeIterator(
            resource_handle=handle, external_state_policy=_REFUSE_OUTER_STATE
        )
        self._save = tf.raw_ops.SaveV2(
            prefix=self._prefix, tensor_names=["state"], shape_and_slices=[""], tensors=[state]
        )
        saved = tf.raw_ops.RestoreV2(
            prefix=self._prefix, tensor_names=["state"], shape_and_slices=[""], dtypes=[tf.variant]
        )
        self._restore = tf.raw_ops.DeserializeIterator(resource_handle=handle, serialized=saved[0])
        self._held_before = _resident_bytes()
        self._next_s = time.monotonic() + folder.every_s
        self._logged = False

    def restore_before(self, session: Any, position: int) -> int | None:
        """Restore the newest state at or before a position.

        Returns:
            The position of that state, or None if there is none; then the iterator must be initialized.
        """
        import tensorflow as tf

        self._folder.clear_others()
        self._remove(path for path in self._files() if self._position(path) not in range(position + 1))
        for path in sorted(self._files(), key=self._position, reverse=True):
            try:
                session.run(self._restore, {self._prefix: literal_path(str(path.with_suffix("")))})
                return self._position(path)
            except tf.errors.OpError as error:
                log.warning("cannot restore a saved state of the input: %s", _cause(error))
                self._remove([path])
        return None

    def save_if_due(self, session: Any, position: int) -> None:
        """Save the state after this number of batches, if one is due."""
        began_s = time.monotonic()
        if began_s < self._next_s - (
            self._folder.every_s if self._folder.is_checkpoint_due(position) else 0.0
        ):
            return
        if (problem := self._problem() or self._write(session, position)) is not None:
            self._next_s = float("inf")
            log.info("a run that resumes this one reads the input from its start: %s", problem)
            return
        took_s = time.monotonic() - began_s
        self._next_s = began_s + self._folder.every_s + took_s / SHARE_OF_TIME
        if not self._logged:
            self._logged = True
            log.info(
                "saving the state of the input in %s, for runs that resume this one (%.1f MB)",
                self._folder.path,
                sum(file.stat().st_size for file in self._folder.path.iterdir()) / 1e6,
            )

    def _problem(self) -> str | None:
        """Return why no state can be saved, or None."""
        if not self._folder.model_dir.is_dir():
            return f"{self._folder.model_dir}, where its state would be saved, is not on this machine"
        held = _resident_bytes() - self._held_before
        if held > LARGEST_BYTES:
            return (
                f"it holds {held / 1e6:,.0f} MB, more than the limit of {LARGEST_BYTES / 1e6:,.0f} MB for a "
                "saved state"
            )
        return None

    def _write(self, session: Any, position: int) -> str | None:
        """Write a state; return why it could not be written, or None."""
        import tensorflow as tf

        folder = self._folder.path
        name = f"{self._program}-{position}"
        partial = folder / f".{name}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            session.run(self._save, {self._prefix: str(partial)})
            for ending in (".data-00000-of-00001", ".index"):  # the index last: with it, a state is complete
                Path(f"{partial}{ending}").replace(folder / f"{name}{ending}")
        except tf.errors.OpError as error:
            self._remove([partial])
            return f"TensorFlow cannot save its state ({_cause(error)})"
        except OSError as error:
            self._remove([partial])
            return f"cannot write its state ({error})"
        # Keep the newest states, and the one from which a run would resume at the newest checkpoint.
        paths = sorted(self._files(), key=self._position)
        used = self._folder.batches_of_checkpoint()
        kept = [path for path in paths if self._position(path) <= used][-1:] + paths[-_NEWEST:]
        self._remove(path for path in paths if path not in kept)
        return None

    def _files(self) -> list[Path]:
        return list(self._folder.path.glob("[!.]*.index"))

    def _position(self, path: Path) -> int:
        """Return the number of batches before a state; -1 for a state of another program."""
        program, _, position = path.stem.rpartition("-")
        return int(position) if program == self._program and position.isdigit() else -1

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            stem = path.name.removesuffix(".index")
            for file in [path, *path.parent.glob(f"{stem}.*")]:
                with suppress(OSError):
                    file.unlink()


def program_digest(graph: Any) -> str:
    """Return a digest of the program of an input: its operations, constants and functions."""
    # Names of functions end with a count over all functions of the process, which is removed here.
    import tensorflow as tf

    definition = graph.as_graph_def()
    functions = definition.library.function
    for function in functions:
        function.signature.name = _without_count(function.signature.name)
    for node in chain(definition.node, *(function.node_def for function in functions)):
        node.op = _without_count(node.op)
        for value in node.attr.values():
            if value.HasField("func") or (value.HasField("list") and value.list.func):
                for named in chain([value.func], value.list.func):
                    named.name = _without_count(named.name)
    found = hashlib.sha256(tf.__version__.encode())
    for node in definition.node:  # one at a time: they may hold a data set
        found.update(hashlib.sha256(node.SerializeToString(deterministic=True)).digest())
    for text in sorted(function.SerializeToString(deterministic=True) for function in functions):
        found.update(hashlib.sha256(text).digest())
    return found.hexdigest()[:16]


def _without_count(name: str) -> str:
    stem, _, count = name.rpartition("_")
    return stem if count.isdigit() else name


def _resident_bytes() -> int:
    """Return the resident memory of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _cause(error: Any) -> str:
    """Return the message of a TensorFlow error without its location in the graph, which the toolkit built."""
    lines = [line for line in str(error.message).splitlines() if line.strip()]
    locations = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    first = locations[-1] + 1 if locations else 0
    return lines[first].strip().rstrip(".") if first < len(lines) else "no reason given"
