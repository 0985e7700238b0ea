"""The parameters of a user's program: what of them is plain data, and the file that notes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cs_runtime.files import write_text

_DROPPED = object()


def plain(value: Any) -> Any:
    """The part of a value that JSON can hold: what cannot is left out of mappings and sequences.

    NumPy numbers become Python's, tuples lists, paths text.
    """
    kept = _plain(value)
    return None if kept is _DROPPED else kept


def text_of(params: Mapping[str, Any]) -> str:
    """Parameters as YAML."""
    return yaml.safe_dump(plain(params), sort_keys=False)


def write_params(model_dir: Path, params: Mapping[str, Any]) -> None:
    """Writes `params.yaml`, replacing it in one step.

    Raises:
        ModelDirError: the directory is not writable or full.
    """
    write_text(model_dir / "params.yaml", text_of(params))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # np.float64 is a float that YAML does not know
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, Mapping):
        members = {str(key): _plain(item) for key, item in value.items()}
        return {key: item for key, item in members.items() if item is not _DROPPED}
    if isinstance(value, (list, tuple)):
        return [item for item in map(_plain, value) if item is not _DROPPED]
    # NumPy scalars and arrays; an array of a few numbers is a parameter too.
    to_list = getattr(value, "tolist", None)
    return _plain(to_list()) if callable(to_list) and type(value).__module__ == "numpy" else _DROPPED
