"""Checkpoints in HDF5 by the names of their tensors, as programs of releases 1.7 to 2.2 use them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch.utils import _pytree as pytree

from cstorch.checkpoints import load, save
from cstorch.checkpoints.reader import SIGNATURE
from cstorch.errors import CheckpointError
from cstorch.program import Program
from cstorch.utils.helpers import named_leaves, recurse_spec

PathLike = str | os.PathLike[str]

# Prefix of weights and buffers in the state of a program.
_MODEL = "model."


class PyTorchH5Saver:
    """Writes and reads whole checkpoints, or single tensors of them.

    A checkpoint that is written tensor by tensor is kept in memory until `save_spec` has given its nest and
    all tensors are complete. It is then written in one step.

    Args:
        loaded_checkpoint: Checkpoint whose elements `save` writes instead of the program's, by name.
        is_pretrained_checkpoint: Use only the elements of the model from it that both have.
        kwargs: Other settings of the original, without effect.
    """

    def __init__(
        self,
        loaded_checkpoint: PathLike | None = None,
        is_pretrained_checkpoint: bool = False,
        **kwargs: Any,
    ) -> None:
        self._loaded, self._is_pretrained = loaded_checkpoint, is_pretrained_checkpoint
        self.settings = kwargs

    @staticmethod
    def is_valid_checkpoint(checkpoint_file: PathLike) -> bool:
        """Return True for a file in HDF5."""
        path = Path(checkpoint_file)
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(SIGNATURE)) == SIGNATURE

    @staticmethod
    def tensor_names(checkpoint_file: PathLike) -> list[str]:
        """Return the names of all leaves of a checkpoint: their keys, joined by dots."""
        return list(named_leaves(load(checkpoint_file)))

    @staticmethod
    def flatten_state_dict(state_dict: Any) -> tuple[dict[str, Any], pytree.TreeSpec]:
        """Return the leaves of a nest by name, and its shape."""
        return named_leaves(state_dict), pytree.tree_flatten(state_dict)[1]

    def save(self, checkpoint_file: PathLike, state_dict: Any) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: The loaded checkpoint and the model have different tensors.
        """
        save(state_dict if not self._loaded else self._merge(state_dict, self._loaded), checkpoint_file)

    def _merge(self, state_dict: Any, checkpoint_file: PathLike) -> Any:
        """Return a nest with the elements of a checkpoint."""
        loaded = named_leaves(load(checkpoint_file, map_location="cpu"))
        leaves, spec = pytree.tree_flatten(state_dict)
        names = named_leaves(state_dict)
        # The CPU target of these programs loads strictly too, unless the checkpoint is a pretrained one.
        extra = [name for name in loaded if name.startswith(_MODEL) and name not in names]
        if extra and not self._is_pretrained:
            raise CheckpointError(
                f"{checkpoint_file} has {extra[0]}, expected only weights of the model, which lacks it; set "
                "is_pretrained_checkpoint to load only weights that the model has"
            )
        merged = []
        for name, leaf in zip(names, leaves, strict=True):
            of_model = name.startswith(_MODEL)
            if name in loaded and (of_model or not self._is_pretrained):
                merged.append(loaded[name])
            elif of_model and not self._is_pretrained:
                raise CheckpointError(
                    f"{checkpoint_file} has no {name}, expected it: the model has it; set "
                    "is_pretrained_checkpoint to load only weights that the checkpoint has"
                )
            else:
                merged.append(leaf)
        return pytree.tree_unflatten(merged, spec)

    def load(self, checkpoint_file: PathLike, map_location: Any = None) -> Any:
        """Read a checkpoint."""
        return load(checkpoint_file, map_location)

    def load_tensor(self, checkpoint_file: PathLike, tensor_name: str) -> Any:
        """Return one leaf of a checkpoint.

        Raises:
            KeyError: There is no leaf of this name.
        """
        status = Path(checkpoint_file).stat()
        leaves = _leaves_of(Path(checkpoint_file).absolute(), status.st_mtime_ns, status.st_size)
        if tensor_name not in leaves:
            raise KeyError(f"{checkpoint_file} has no {tensor_name!r}, expected one of {', '.join(leaves)}")
        return leaves[tensor_name]

    def save_spec(self, checkpoint_file: PathLike, spec: pytree.TreeSpec) -> None:
        """Set the nest of a checkpoint whose tensors are written by `save_tensor`, before or after it."""
        _Pending.of(checkpoint_file).set_spec(spec)

    def save_tensor(self, checkpoint_file: PathLike, tensor_name: str, tensor_value: Any) -> None:
        """Add a leaf to a checkpoint."""
        _Pending.of(checkpoint_file).add(tensor_name, tensor_value)


# Programs read a checkpoint leaf by leaf. Time and size are arguments so that a changed file is read again.
@lru_cache(maxsize=1)
def _leaves_of(checkpoint_file: Path, mtime_ns: int, size: int) -> dict[str, Any]:
    """Return the leaves of a checkpoint by name."""
    return named_leaves(load(checkpoint_file))


class _Pending:
    """A checkpoint that is not complete yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._leaves: dict[str, Any] = {}
        self._spec: pytree.TreeSpec | None = None

    @classmethod
    def of(cls, path: PathLike) -> _Pending:
        """Return the pending checkpoint for a path."""
        key = Path(path).absolute()
        return Program.current().part(_PendingCheckpoints).by_path.setdefault(key, cls(key))

    def set_spec(self, spec: pytree.TreeSpec) -> None:
        """Set the nest."""
        self._spec = spec
        self._write_if_complete()

    def add(self, name: str, value: Any) -> None:
        """Add a leaf."""
        self._leaves[name] = value
        self._write_if_complete()

    def _write_if_complete(self) -> None:
        if self._spec is None:
            return
        names = [".".join(path) for path in recurse_spec(self._spec)]
        if all(name in self._leaves for name in names):
            save(pytree.tree_unflatten([self._leaves[name] for name in names], self._spec), self._path)
            del Program.current().part(_PendingCheckpoints).by_path[self._path]


@dataclass
class _PendingCheckpoints:
    by_path: dict[Path, _Pending] = field(default_factory=dict)


class CheckpointReader:
    """Reads a checkpoint.

    Args:
        checkpoint_file: The file.

    Attributes:
        tensor_names: Names of the leaves.
        spec: Structure of the nest.
    """

    def __init__(self, checkpoint_file: PathLike) -> None:
        self.checkpoint_file = checkpoint_file
        self._state = load(checkpoint_file)
        self.spec = pytree.tree_flatten(self._state)[1]
        self.tensor_names = list(named_leaves(self._state))

    def __getitem__(self, name: str) -> Any:
        return named_leaves(self._state)[name]


class CerebrasStateDict(dict[str, Any]):
    """The state in a checkpoint, as a dict whose tensors are read when they are used."""

    @classmethod
    def create(cls, spec: pytree.TreeSpec, checkpoint_file: PathLike) -> CerebrasStateDict:
        """Return the state in a checkpoint.

        Args:
            spec: Structure of the nest; ignored, because the file has it.
            checkpoint_file: The file.
        """
        state = load(checkpoint_file)
        return cls(state if isinstance(state, Mapping) else {"state": state})
