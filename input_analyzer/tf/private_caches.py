"""Caches and snapshots on disk that an analysis keeps apart from those of the user.

Whoever reads a dataset with `cache(filename)` or `snapshot(path)` writes these files. An analysis must not: a
training would find them and read from them what an only worker, or another shard, has left there. So the
operations get a path in the folder of the analysis, whoever makes them: the user's calls, TensorFlow eagerly,
in a graph, in a function. What is complete already is read, as a run reads it, which writes nothing.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import snapshot_pb2
from tensorflow.python.ops import gen_dataset_ops, gen_experimental_dataset_ops

from input_analyzer.tf.rebuild import as_dataset, create, rebuild
from input_rules.tf.nodes import in_order, input_lists, is_dataset

_CACHES = ("cache_dataset", "cache_dataset_v2")
_SNAPSHOTS = ("snapshot_dataset", "snapshot_dataset_v2")
_INDEX = ".index"
"""Ends the name of the file that TensorFlow writes when a cache is complete."""
_METADATA = "snapshot.metadata"

_kept: dict[str, None] = {}
_caches_read: dict[str, None] = {}
_snapshots_read: dict[str, None] = {}
_folders: list[Path] = []
_marks = itertools.count()


def keep_apart(folder: Path) -> None:
    """From here on caches and snapshots of this process are written below a folder. Once for a process."""
    if _folders:
        return
    folder.mkdir(exist_ok=True)
    _folders.append(folder)
    for name in _CACHES:
        _replace(gen_dataset_ops, name, "filename", _cache_path)
    for name in _SNAPSHOTS:
        _replace(gen_experimental_dataset_ops, name, "path", _snapshot_path)


def folder_of_all() -> Path | None:
    """That of all processes that were started together, which goes with them; None outside of an analysis."""
    return _folders[0].parent if _folders else None


def notes() -> tuple[str, ...]:
    """What a reader must know of the files that were kept apart so far, and of those that were read."""
    said = []
    if _kept:
        said.append(
            f"{', '.join(_kept)}: written to a temporary folder of the analysis instead, and made again by "
            "every copy; the place itself, which a run would use, was not measured."
        )
    if _caches_read:
        said.append(
            f"{', '.join(_caches_read)}: there is a complete cache already, which is read, here as in a run. "
            "Remove it to measure how it is made."
        )
    if _snapshots_read:
        said.append(
            f"{', '.join(_snapshots_read)}: there is a complete snapshot already, which is read, here as in "
            "a run, if it was made by the same operations. Remove it to measure how it is made."
        )
    return tuple(said)


def with_own_files(dataset: Any) -> Any:
    """The same dataset of a graph, built after `keep_apart`, with files that no other one has.

    Two that are read at a time cannot write the same files, and neither is to read what the other has made.
    """
    last = tf.data.experimental.to_variant(dataset).op
    if not any(_own_path(node) for node in in_order(last)):
        return dataset
    mark = next(_marks)

    def change(node: Any, datasets: list[Any]) -> Any:
        path = _own_path(node)
        if path is None:
            return None
        other = Path(f"{path}-{mark}")  # the same for all of a dataset, as it may read a cache twice
        if Path(path).is_dir():
            _link(other, [entry.readlink() for entry in Path(path).iterdir() if entry.is_symlink()])
        fresh, place = iter(datasets), _path(node).name
        inputs = [
            next(fresh) if is_dataset(tensor) else tf.constant(str(other)) if tensor.name == place else tensor
            for tensor in node.inputs
        ]
        return create(node.graph, node.type, inputs, dict(node.node_def.attr))

    return as_dataset(rebuild(last, change), dataset.element_spec)


def _replace(module: Any, operation: str, argument: str, other: Callable[[Any], Any]) -> None:
    """Lets an argument of a function that makes an operation be another one."""
    make = getattr(module, operation)
    signature = inspect.signature(make)

    def made(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.arguments[argument] = other(bound.arguments[argument])
        return make(*bound.args, **bound.kwargs)

    setattr(module, operation, made)


def _cache_path(given: Any) -> Any:
    path = tf.convert_to_tensor(given, tf.string)
    known = _known(path)
    if known is None:
        # Within the function of an interleave, say: the name is computed when that is called.
        ready = tf.size(tf.io.matching_files(tf.strings.join([path, _INDEX]))) > 0
        number = tf.strings.to_hash_bucket_fast(path, 1 << 62)
        own = tf.strings.join([f"{_folders[0]}/", tf.strings.as_string(number)])
        return tf.where(tf.logical_or(tf.equal(path, ""), ready), path, own)
    if not known or _is_own(known):  # in memory, or an operation that is copied
        return path
    if tf.io.gfile.exists(known + _INDEX):
        _caches_read[known] = None
        return path
    _kept[known] = None
    return tf.constant(str(_own(known)))


def _snapshot_path(given: Any) -> Any:
    path = tf.convert_to_tensor(given, tf.string)
    known = _known(path)
    if known is None:
        number = tf.strings.to_hash_bucket_fast(path, 1 << 62)
        return tf.strings.join([f"{_folders[0]}/", tf.strings.as_string(number)])
    if _is_own(known):
        return path
    own = _own(known)
    complete = [folder for folder in Path(known).glob("*") if _is_complete(folder)]
    _link(own, complete)
    (_snapshots_read if complete else _kept)[known] = None
    return tf.constant(str(own))


def _link(own: Path, complete: Sequence[Path]) -> None:
    """Shows TensorFlow the complete snapshots of a user: it reads the one named after the graph before it."""
    own.mkdir(exist_ok=True)
    for folder in complete:
        link = own / folder.name
        if not link.is_symlink():
            link.symlink_to(folder.absolute())


def _is_complete(folder: Path) -> bool:
    """Whether a run has written a snapshot to its end."""
    try:
        record = snapshot_pb2.SnapshotMetadataRecord.FromString((folder / _METADATA).read_bytes())
    except (OSError, DecodeError):
        return False
    return bool(record.finalized)


def _known(path: Any) -> str | None:
    value = tf.get_static_value(path)
    return None if value is None else os.fsdecode(np.asarray(value).item())


def _own(path: str) -> Path:
    return _folders[0] / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _is_own(path: str) -> bool:
    return Path(path).is_relative_to(_folders[0])


def _path(node: Any) -> Any:
    lists = input_lists(node)
    return next((lists[name][0] for name in ("filename", "path") if name in lists), None)


def _own_path(node: Any) -> str | None:
    """The path of a cache or snapshot that was put into our folder."""
    if not _folders or not node.type.startswith(("CacheDataset", "SnapshotDataset")):
        return None
    path = _known(_path(node))
    return path if path and _is_own(path) else None
