"""HDF5 files: a data set with attributes for each key; keys without a value are attributes of the file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cs_compat.appliance.storage.base_storage import (
    PathLike,
    StorageDeleter,
    StorageReader,
    StorageWriter,
)


class _Files:
    """Supports paths of files, which have no URL scheme."""

    @classmethod
    def is_valid_path(cls, path: PathLike) -> bool:
        """Return True for the path of a file."""
        return "://" not in os.fspath(path)

    @classmethod
    def path_exists(cls, path: PathLike) -> bool:
        """Return True if the file exists."""
        return cls.is_valid_path(path) and Path(path).exists()


class H5Reader(_Files, StorageReader):
    """Reads an HDF5 file.

    Args:
        path: Path of the file.
        compression: Accepted without effect.
    """

    def __init__(self, path: PathLike, compression: Any = None) -> None:
        super().__init__(path)

    @property
    def fstat(self) -> os.stat_result:
        """Size and times of the file."""
        return Path(self.path).stat()

    @property
    def stats(self) -> os.stat_result:
        """Size and times of the file."""
        return self.fstat

    @property
    def global_metadata(self) -> dict[str, Any]:
        """The attributes of the file."""
        with _open_file(self.path, "r") as file:
            return _plain(file.attrs)

    def read(self, key: str) -> tuple[np.ndarray[Any, Any] | None, dict[str, Any]]:
        """Return the value under a key, None for metadata only, and its metadata.

        Raises:
            KeyError: There is no such key.
        """
        with _open_file(self.path, "r") as file:
            if key in file:
                return file[key][()], _plain(file[key].attrs)
            if key in file.attrs:
                return None, json.loads(file.attrs[key])
        raise KeyError(f"{self.path} has no key {key!r}")


class H5Writer(_Files, StorageWriter):
    """Writes an HDF5 file, which is created with the first value.

    Args:
        path: Path of the file.
        compression: Compression of `h5py.Group.create_dataset`; None for no compression.
    """

    def __init__(self, path: PathLike, compression: Any = None) -> None:
        super().__init__(path)
        self._compression = compression

    @property
    def reader(self) -> H5Reader:
        """A reader of the same file."""
        return H5Reader(self.path)

    def write_numpy(self, key: str, array: np.ndarray[Any, Any], metadata: Mapping[str, Any]) -> None:
        """Write an array."""
        with _open_file(self.path, "a") as file:
            if key in file:
                del file[key]
            data = file.create_dataset(key, data=array, compression=self._compression)
            data.attrs.update(metadata)

    def write_bytes(self, key: str, bytes: bytes, metadata: Mapping[str, Any]) -> None:  # noqa: A002 - the original's name
        """Write bytes, as an array of numbers of 8 bits."""
        self.write_numpy(key, np.frombuffer(bytes, np.uint8), metadata)

    def write_metadata(self, key: str, metadata: Mapping[str, Any]) -> None:
        """Write metadata without a value."""
        with _open_file(self.path, "a") as file:
            file.attrs[key] = json.dumps(dict(metadata))


class H5Deleter(_Files, StorageDeleter):
    """Deletes an HDF5 file, or one key of it."""

    def delete(self, key: str | None = None) -> None:
        """Delete the value under a key, or the file without a key; ignore missing ones."""
        if key is None:
            Path(self.path).unlink(missing_ok=True)
        elif Path(self.path).exists():
            with _open_file(self.path, "a") as file:
                for place in (file, file.attrs):
                    if key in place:
                        del place[key]


@contextmanager
def _open_file(path: str, mode: str) -> Iterator[Any]:
    import h5py  # late: TensorFlow's environment may lack it

    with h5py.File(path, mode) as file:
        yield file


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as Python values."""
    return {
        name: value.item() if isinstance(value, np.generic) else value for name, value in attributes.items()
    }
