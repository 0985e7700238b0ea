"""Large tensors of a graph, in files that TensorFlow maps to memory.

A constant is a part of its graph, which is copied whenever it is looked at: of half a gigabyte of data an
analysis had five at a time. A file is mapped once, and a graph holds its name.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cs_toolkit.files import replace_file
from input_analyzer.tf.private_caches import folder_of_all

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
