"""States of an input, kept beside the checkpoints: a continued run goes on there without reading.

Where a shuffle stands in the way, no arithmetic says what comes next. TensorFlow can write the state of an
iterator, with what its shuffles and prefetches hold, and go on from it bit for bit. A worker does that at the
steps of checkpoints and every ten seconds, in a hundredth of its time, and keeps the newest states and one
from before the newest checkpoint. A state only saves reading: where none fits (another program, another
number of workers, another TensorFlow) the input is read up to its position as without one.
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

from cs_stream.run_state import count_before
from estimator.checkpoints import latest_checkpoint

log = logging.getLogger("estimator")

FOLDER = "input_state"
KEPT_EVERY_S = 10.0
SHARE_OF_TIME = 0.01
LARGEST_BYTES = 1 << 30
"""Memory that an input may hold; writing its state takes about as much again."""
_NEWEST = 3
"""Their times lie so far apart that a checkpoint yet to come is behind one of them."""
_REFUSE_OUTER_STATE = 2
"""Policy of TensorFlow: random numbers and Python functions have a state that an iterator does not write."""


@dataclass(frozen=True)
class StateFolder:
    """Where a task keeps the states of its input.

    Attributes:
        model_dir: of the training.
        shard: index of the task among those that read.
        num_shards: their number.
        checkpoint_steps: steps between two checkpoints; None where time decides.
        every_s: seconds between two states, if writing one takes little.
    """

    model_dir: Path
    shard: int
    num_shards: int
    checkpoint_steps: int | None = None
    every_s: float = KEPT_EVERY_S

    @property
    def path(self) -> Path:
        """The folder."""
        return self.model_dir / FOLDER / f"worker-{self.shard}-of-{self.num_shards}"

    def is_of_checkpoint(self, batches: int) -> bool:
        """Whether a checkpoint is due when the training has used just so many batches of this task."""
        next_step = batches * self.num_shards + self.shard
        every = self.checkpoint_steps
        return bool(every) and next_step % (every or 1) < min(self.num_shards, next_step)

    def batches_of_checkpoint(self) -> int:
        """How many batches of this task the newest checkpoint has seen."""
        newest = latest_checkpoint(self.model_dir) or ""
        step = newest.rpartition("-")[2]
        return count_before(self.shard, self.num_shards, int(step)) if step.isdigit() else 0

    def clear_others(self) -> None:
        """Removes the states of trainings with another number of tasks; the first task does it for all."""
        for other in self.path.parent.glob("worker-*-of-*") if self.shard == 0 else ():
            if not other.name.endswith(f"-of-{self.num_shards}"):
                shutil.rmtree(other, ignore_errors=True)


class IteratorStates:
    """Writes and reads the states of an iterator; adds what it needs to the present graph.

    Args:
        folder: where they lie.
        iterator: an initializable one of the graph, which holds nothing but the input.
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
        self._told = False

    def restore_before(self, session: Any, position: int) -> int | None:
        """Sets the iterator to the newest state at or before a position.

        Returns:
            The position of that state; None where there is none: then the iterator has to be initialized.
        """
        import tensorflow as tf

        self._folder.clear_others()
        self._remove(path for path in self._files() if self._position(path) not in range(position + 1))
        for path in sorted(self._files(), key=self._position, reverse=True):
            try:
                session.run(self._restore, {self._prefix: str(path.with_suffix(""))})
                return self._position(path)
            except tf.errors.OpError as error:
                log.warning("a state of the input cannot be read: %s", _cause(error))
                self._remove([path])
        return None

    def keep_where_due(self, session: Any, position: int) -> None:
        """Writes the state behind so many batches if it is time to."""
        began_s = time.monotonic()
        if began_s < self._next_s - (
            self._folder.every_s if self._folder.is_of_checkpoint(position) else 0.0
        ):
            return
        if (problem := self._problem() or self._written(session, position)) is not None:
            self._next_s = float("inf")
            log.info("the input is read again where this training is continued: %s", problem)
            return
        took_s = time.monotonic() - began_s
        self._next_s = began_s + self._folder.every_s + took_s / SHARE_OF_TIME
        if not self._told:
            self._told = True
            log.info(
                "the state of the input is kept in %s for runs that continue this one (%.1f MB)",
                self._folder.path,
                sum(file.stat().st_size for file in self._folder.path.iterdir()) / 1e6,
            )

    def _problem(self) -> str | None:
        """Why a state is not even tried to be written."""
        if not self._folder.model_dir.is_dir():
            return f"there is no {self._folder.model_dir} on this machine to keep its state in"
        held = _resident_bytes() - self._held_before
        if held > LARGEST_BYTES:
            return (
                f"it holds {held / 1e6:,.0f} MB, and states of up to {LARGEST_BYTES / 1e6:,.0f} MB are kept"
            )
        return None

    def _written(self, session: Any, position: int) -> str | None:
        """Writes a state; says why where that cannot be."""
        import tensorflow as tf

        folder = self._folder.path
        name = f"{self._program}-{position}"
        partial = folder / f".{name}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            session.run(self._save, {self._prefix: str(partial)})
            for ending in (".data-00000-of-00001", ".index"):  # what has an index is whole
                Path(f"{partial}{ending}").replace(folder / f"{name}{ending}")
        except tf.errors.OpError as error:
            self._remove([partial])
            return f"TensorFlow cannot write its state ({_cause(error)})"
        except OSError as error:
            self._remove([partial])
            return f"its state cannot be written ({error})"
        self._remove(self._superseded())
        return None

    def _superseded(self) -> list[Path]:
        """All but the newest states, and the one that serves for the newest checkpoint."""
        paths = sorted(self._files(), key=self._position)
        used = self._folder.batches_of_checkpoint()
        kept = [path for path in paths if self._position(path) <= used][-1:] + paths[-_NEWEST:]
        return [path for path in paths if path not in kept]

    def _files(self) -> list[Path]:
        return list(self._folder.path.glob("[!.]*.index"))

    def _position(self, path: Path) -> int:
        """Batches before a state; -1 for what is of another program."""
        program, _, position = path.stem.rpartition("-")
        return int(position) if program == self._program and position.isdigit() else -1

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            stem = path.name.removesuffix(".index")
            for file in [path, *path.parent.glob(f"{stem}.*")]:
                with suppress(OSError):
                    file.unlink()


def program_digest(graph: Any) -> str:
    """What tells the program of an input from others: its operations, numbers and functions.

    Names of functions end with a count over all functions of the process, which does not belong to them.
    """
    import tensorflow as tf

    definition = graph.as_graph_def()
    functions = definition.library.function
    for function in functions:
        function.signature.name = _without_count(function.signature.name)
    for node in chain(definition.node, *(function.node_def for function in functions)):
        node.op = _without_count(node.op)
        for value in node.attr.values():
            for named in chain([value.func], value.list.func) if _has_functions(value) else ():
                named.name = _without_count(named.name)
    found = hashlib.sha256(tf.__version__.encode())
    for node in definition.node:  # one at a time: they may hold a data set
        found.update(hashlib.sha256(node.SerializeToString(deterministic=True)).digest())
    for text in sorted(function.SerializeToString(deterministic=True) for function in functions):
        found.update(hashlib.sha256(text).digest())
    return found.hexdigest()[:16]


def _has_functions(value: Any) -> bool:
    return value.HasField("func") or bool(value.HasField("list") and value.list.func)


def _without_count(name: str) -> str:
    stem, _, count = name.rpartition("_")
    return stem if count.isdigit() else name


def _resident_bytes() -> int:
    """Memory of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _cause(error: Any) -> str:
    """TensorFlow's own sentence, without the place in the graph, which is of us."""
    lines = [line for line in str(error.message).splitlines() if line.strip()]
    behind_place = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    first = behind_place[-1] + 1 if behind_place else 0
    return lines[first].strip().rstrip(".") if first < len(lines) else "no reason is given"
