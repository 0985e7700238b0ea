"""Base classes of readers, writers and deleters, chosen by the path of a file or object."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from inspect import isabstract
from typing import Any, TypeVar

import numpy as np

from cs_compat.appliance.utils.classes import retrieve_all_subclasses

PathLike = str | os.PathLike[str]
Access = TypeVar("Access", bound="Storage")


class Storage:
    """Base of readers, writers and deleters, with a subclass for each kind of path.

    Args:
        path: Path of the file or object.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)

    @classmethod
    def get(cls: type[Access], path: PathLike, *args: Any, **kwargs: Any) -> Access:
        """Return a reader, writer or deleter for a path.

        Raises:
            ValueError: No class supports such a path.
        """
        return cls.get_type(path)(path, *args, **kwargs)

    @classmethod
    def get_type(cls: type[Access], path: PathLike) -> type[Access]:
        """Return the class for a path.

        Raises:
            ValueError: No class supports such a path.
        """
        for kind in _concrete(cls):
            if kind.is_valid_path(path):
                return kind
        raise ValueError(f"{path!r} is neither the path of a file nor the URL of an object, s3://BUCKET/KEY")

    @classmethod
    def is_valid_path(cls, path: PathLike) -> bool:
        """Return True if one of the subclasses supports a path."""
        return any(kind.is_valid_path(path) for kind in _concrete(cls))

    @classmethod
    def path_exists(cls, path: PathLike) -> bool:
        """Return True if a file or an object exists at a path."""
        return cls.is_valid_path(path) and cls.get_type(path).path_exists(path)


class StorageReader(Storage, ABC):
    """Reads values and their metadata by keys."""

    def exists(self) -> bool:
        """Return True if there is something to read."""
        return type(self).path_exists(self.path)

    @property
    @abstractmethod
    def stats(self) -> Any:
        """Statistics that change when the file or object does."""

    @property
    @abstractmethod
    def global_metadata(self) -> Mapping[str, Any]:
        """The metadata of the whole file or object."""

    @abstractmethod
    def read(self, key: str) -> tuple[np.ndarray[Any, Any] | None, dict[str, Any]]:
        """Return the value under a key, None for metadata only, and its metadata.

        Raises:
            KeyError: There is no such key.
        """


class StorageWriter(Storage, ABC):
    """Writes values and their metadata under keys."""

    def write(self, key: str, object: Any = None, metadata: Mapping[str, Any] | None = None) -> None:  # noqa: A002 - the original's name
        """Write an array, bytes, or metadata only."""
        if object is None:
            self.write_metadata(key, metadata or {})
        elif isinstance(object, bytes | bytearray | memoryview):
            self.write_bytes(key, bytes(object), metadata or {})
        else:
            self.write_numpy(key, np.asarray(object), metadata or {})

    @abstractmethod
    def write_numpy(self, key: str, array: np.ndarray[Any, Any], metadata: Mapping[str, Any]) -> None:
        """Write an array."""

    @abstractmethod
    def write_bytes(self, key: str, bytes: bytes, metadata: Mapping[str, Any]) -> None:  # noqa: A002 - as above
        """Write bytes."""

    @abstractmethod
    def write_metadata(self, key: str, metadata: Mapping[str, Any]) -> None:
        """Write metadata without a value."""


class StorageDeleter(Storage, ABC):
    """Deletes a file or object, or one key of it."""

    @abstractmethod
    def delete(self, key: str | None = None) -> None:
        """Delete the value under a key, or everything without a key; ignore missing ones."""


def _concrete(cls: type[Access]) -> Iterator[type[Access]]:
    """Yield the classes of single storages."""
    return (kind for kind in (cls, *retrieve_all_subclasses(cls)) if not isabstract(kind))
