"""Files that an analysis keeps in its own folder: caches, snapshots, and large tensors of a graph.

Reading a dataset with `cache(filename)` or `snapshot(path)` writes these files. An analysis must not write
them: a training run would find them and read what a single worker, or another shard, has left there. So the
operations get a path in the folder of the analysis, wherever they are made: by the user's calls, eagerly, in
a graph or in a function. Files of a run at the user's path are neither read nor changed.

Large arrays are mapped from files there, so that a graph holds only their names.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import itertools
import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops, gen_experimental_dataset_ops

from cs_toolkit.files import replace_file
from cs_toolkit.temporary import temporary_directory
from input_analyzer.tf.rebuild import as_dataset, rebuild, with_arguments
from input_rules.tf.operations import find_inputs, kind_of

# Functions that make the operations: their modules, and the argument with the path.
_MAKING = {
    **dict.fromkeys(("cache_dataset", "cache_dataset_v2"), (gen_dataset_ops, "filename")),
    **dict.fromkeys(("snapshot_dataset", "snapshot_dataset_v2"), (gen_experimental_dataset_ops, "path")),
}
_PATHS = {"CacheDataset": "filename", "SnapshotDataset": "path"}

_kept: dict[str, None] = {}
_folders: list[Path] = []
_marks = itertools.count()


def keep_apart(folder: Path) -> None:
    """From now on, write caches and snapshots of this process below a folder. Once per process."""
    if _folders:
        return
    folder.mkdir(exist_ok=True)
    _folders.append(folder)
    for name, (module, argument) in _MAKING.items():
        _redirect(module, name, argument)


def folder_of_all() -> Path | None:
    """Return the folder of all processes of the analysis; None outside of an analysis."""
    return _folders[0].parent if _folders else None


def notes() -> tuple[str, ...]:
    """Return a note about the files that were redirected so far."""
    if not _kept:
        return ()
    return (
        f"{', '.join(_kept)}: written to a temporary folder of the analysis instead, and rebuilt by "
        "every copy; the original location, which a run would use, was not measured.",
    )


def with_own_files(dataset: Any) -> Any:
    """Rebuild a dataset of a graph, built after `keep_apart`, with files that no other dataset has.

    Two datasets that are read at the same time cannot write the same files, nor may one read those of the
    other.
    """
    mark = f"-{next(_marks)}"  # the same for all of a dataset, as it may read a cache twice

    def change(node: Any, datasets: list[Any]) -> Any:
        name = _PATHS.get(kind_of(node.type))
        if name is None:
            return None
        (path,) = find_inputs(node)[name]
        own = tf.where(tf.equal(path, ""), path, tf.strings.join([path, mark]))
        return with_arguments(node, datasets, {name: own})

    return as_dataset(rebuild(tf.data.experimental.to_variant(dataset).op, change), dataset.element_spec)


def _redirect(module: Any, operation: str, argument: str) -> None:
    """Wrap a function so that the operations that it makes get a private path."""
    make = getattr(module, operation)
    signature = inspect.signature(make)

    def make_private_path(given: Any) -> Any:
        folder, path = _folders[0], tf.convert_to_tensor(given, tf.string)
        known = tf.get_static_value(path)
        if known is None:
            # For example in the function of an interleave: the name is computed when it is called.
            number = tf.strings.as_string(tf.strings.to_hash_bucket_fast(path, 1 << 62))
            return tf.where(tf.equal(path, ""), path, tf.strings.join([f"{folder}/", number]))
        name = os.fsdecode(np.asarray(known).item())
        if not name or Path(name).is_relative_to(folder):  # in memory, or a copied operation
            return path
        _kept[name] = None
        return tf.constant(str(folder / hashlib.sha256(os.fsencode(name)).hexdigest()[:16]))

    def make_with_private_path(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.arguments[argument] = make_private_path(bound.arguments[argument])
        return make(*bound.args, **bound.kwargs)

    setattr(module, operation, make_with_private_path)


# Arrays of at least this many bytes are written to files. A constant is part of its graph, which is copied
# whenever it is inspected: an analysis held half a gigabyte of data five times.
LARGE = 1 << 24


def map_array(value: Any, dtype: Any) -> Any:
    """Map an array from a file into the default graph; return None if it has to be a constant.

    The tensor is read-only: it must not initialize variables, which may take over its buffer.
    """
    if value.nbytes < LARGE or dtype.is_quantized or not (dtype.is_bool or dtype.is_numeric):
        return None
    held = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    path = _data_folder() / hashlib.blake2b(held, digest_size=16).hexdigest()
    try:
        if not path.exists():
            replace_file(path, held)
    except OSError:  # the disk is full
        return None
    return tf.raw_ops.ImmutableConst(dtype=dtype, shape=value.shape, memory_region_name=str(path))


@cache
def _data_folder() -> Path:
    """Return the folder of all processes of the analysis, or one that is removed with this process."""
    shared = folder_of_all()
    if shared is not None:
        (shared / "data").mkdir(exist_ok=True)
        return shared / "data"
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(temporary_directory("input_analyzer_"))
