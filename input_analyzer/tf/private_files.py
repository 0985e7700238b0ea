"""Caches and snapshots on disk that an analysis keeps apart from those of the user.

Whoever reads a dataset with `cache(filename)` or `snapshot(path)` writes these files. An analysis must not: a
training would find them and read from them what an only worker, or another shard, has left there. So the
operations get a path in the folder of the analysis, whoever makes them: the user's calls, TensorFlow eagerly,
in a graph, in a function. What a run has left at the user's path is neither read nor changed.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import itertools
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops, gen_experimental_dataset_ops

from cs_toolkit.files import replace_file
from input_analyzer.tf.rebuild import as_dataset, rebuild, with_arguments
from input_rules.tf.operations import kind_of, named_inputs

_MAKING = {
    **dict.fromkeys(("cache_dataset", "cache_dataset_v2"), (gen_dataset_ops, "filename")),
    **dict.fromkeys(("snapshot_dataset", "snapshot_dataset_v2"), (gen_experimental_dataset_ops, "path")),
}
"""Functions that make the operations: their modules, and the argument with the path."""
_PATHS = {"CacheDataset": "filename", "SnapshotDataset": "path"}

_kept: dict[str, None] = {}
_folders: list[Path] = []
_marks = itertools.count()


def keep_apart(folder: Path) -> None:
    """From here on caches and snapshots of this process are written below a folder. Once for a process."""
    if _folders:
        return
    folder.mkdir(exist_ok=True)
    _folders.append(folder)
    for name, (module, argument) in _MAKING.items():
        _replace(module, name, argument)


def folder_of_all() -> Path | None:
    """That of all processes that were started together, which goes with them; None outside of an analysis."""
    return _folders[0].parent if _folders else None


def notes() -> tuple[str, ...]:
    """What a reader must know of the files that were kept apart so far."""
    if not _kept:
        return ()
    return (
        f"{', '.join(_kept)}: written to a temporary folder of the analysis instead, and made again by "
        "every copy; the place itself, which a run would use, was not measured.",
    )


def with_own_files(dataset: Any) -> Any:
    """The same dataset of a graph, built after `keep_apart`, with files that no other one has.

    Two that are read at a time cannot write the same files, and neither is to read what the other has made.
    """
    mark = f"-{next(_marks)}"  # the same for all of a dataset, as it may read a cache twice

    def change(node: Any, datasets: list[Any]) -> Any:
        name = _PATHS.get(kind_of(node.type))
        if name is None:
            return None
        (path,) = named_inputs(node)[name]
        own = tf.where(tf.equal(path, ""), path, tf.strings.join([path, mark]))
        return with_arguments(node, datasets, {name: own})

    return as_dataset(rebuild(tf.data.experimental.to_variant(dataset).op, change), dataset.element_spec)


def _replace(module: Any, operation: str, argument: str) -> None:
    """Lets the path that a function makes an operation with be ours."""
    make = getattr(module, operation)
    signature = inspect.signature(make)

    def made(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.arguments[argument] = _own_path(bound.arguments[argument])
        return make(*bound.args, **bound.kwargs)

    setattr(module, operation, made)


def _own_path(given: Any) -> Any:
    folder, path = _folders[0], tf.convert_to_tensor(given, tf.string)
    known = tf.get_static_value(path)
    if known is None:
        # Within the function of an interleave, say: the name is computed when that is called.
        number = tf.strings.as_string(tf.strings.to_hash_bucket_fast(path, 1 << 62))
        return tf.where(tf.equal(path, ""), path, tf.strings.join([f"{folder}/", number]))
    name = os.fsdecode(np.asarray(known).item())
    if not name or Path(name).is_relative_to(folder):  # in memory, or an operation that is copied
        return path
    _kept[name] = None
    return tf.constant(str(folder / hashlib.sha256(os.fsencode(name)).hexdigest()[:16]))


LARGE = 1 << 24
"""Bytes from which on a tensor is worth a file."""


def mapped(value: Any, dtype: Any) -> Any:
    """A tensor of the default graph with the values of an array; None where it has to be a constant.

    Nothing may write to it: not for variables, which may take over what they start with.
    """
    if value.nbytes < LARGE or dtype.is_quantized or not (dtype.is_bool or dtype.is_numeric):
        return None
    held = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    path = _folder() / hashlib.blake2b(held, digest_size=16).hexdigest()
    try:
        if not path.exists():
            replace_file(path, held)
    except OSError:  # no room for it
        return None
    return tf.raw_ops.ImmutableConst(dtype=dtype, shape=value.shape, memory_region_name=str(path))


@cache
def _folder() -> Path:
    """All processes of an analysis have one, which goes with them; else removed at the end of the process."""
    shared = folder_of_all()
    if shared is not None:
        (shared / "data").mkdir(exist_ok=True)
        return shared / "data"
    folder = Path(tempfile.mkdtemp(prefix="input_analyzer_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
