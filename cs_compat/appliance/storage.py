"""Storage of checkpoints: HDF5 files, and objects of an S3 store that are such files.

A value is a data set with attributes; keys without a value are attributes of the file. Objects are as
`cstorch.save` writes them, and need the extra `s3`.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import isabstract
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cs_toolkit import object_store
from cs_toolkit.subclasses import retrieve_all_subclasses

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


class _Objects:
    """Supports URLs of objects.

    Attributes:
        key: Key of the object.
        s3_bucket: Its bucket, a resource of boto3.
    """

    path: str

    @classmethod
    def is_valid_path(cls, path: PathLike) -> bool:
        """Return True for the URL of an object."""
        return object_store.is_url(path)

    @classmethod
    def path_exists(cls, path: PathLike) -> bool:
        """Return True if the object exists."""
        return cls.is_valid_path(path) and object_store.exists(path)

    @property
    def key(self) -> str:
        """Key of the object."""
        return object_store.split(self.path)[1]

    @property
    def s3_bucket(self) -> Any:
        """Bucket of the object, a resource of boto3."""
        return object_store.bucket_of(self.path)


class S3Reader(_Objects, StorageReader):
    """Reads an object, which each call downloads; `cstorch.load` downloads it once.

    Args:
        path: URL of the object, s3://BUCKET/KEY.
    """

    def __init__(self, path: PathLike) -> None:
        super().__init__(path)

    @classmethod
    def construct(cls, path: PathLike) -> S3Reader:
        """Return a reader."""
        return cls(path)

    @classmethod
    def load_json_from_path(cls, path: PathLike) -> Any:
        """Return the content of a JSON object."""
        with object_store.downloaded(path) as file:
            return json.loads(file.read_text())

    @property
    def stats(self) -> dict[str, Any]:
        """Size in bytes, time of the last change, and hash of the object."""
        summary = self.s3_bucket.Object(self.key)
        return {"size": summary.content_length, "modified": summary.last_modified, "etag": summary.e_tag}

    @property
    def global_metadata(self) -> dict[str, Any]:
        """The metadata of the whole object."""
        with object_store.downloaded(self.path) as file:
            return H5Reader(file).global_metadata

    def read(self, key: str) -> tuple[np.ndarray[Any, Any] | None, dict[str, Any]]:
        """Return the value under a key, None for metadata only, and its metadata.

        Raises:
            KeyError: There is no such key.
        """
        with object_store.downloaded(self.path) as file:
            return H5Reader(file).read(key)


class S3Writer(_Objects, StorageWriter):
    """Writes an object, which each call uploads; `cstorch.save` uploads it once.

    Args:
        path: URL of the object, s3://BUCKET/KEY.
    """

    def __init__(self, path: PathLike) -> None:
        super().__init__(path)

    def write_numpy(self, key: str, array: np.ndarray[Any, Any], metadata: Mapping[str, Any]) -> None:
        """Write an array."""
        self._change("write_numpy", key, array, metadata)

    def write_bytes(self, key: str, bytes: bytes, metadata: Mapping[str, Any]) -> None:  # noqa: A002 - the original's name
        """Write bytes, as an array of numbers of 8 bits."""
        self._change("write_bytes", key, bytes, metadata)

    def write_metadata(self, key: str, metadata: Mapping[str, Any]) -> None:
        """Write metadata without a value."""
        self._change("write_metadata", key, metadata)

    def _change(self, method: str, *arguments: Any) -> None:
        with object_store.uploaded(self.path) as file:
            if object_store.exists(self.path):
                with object_store.downloaded(self.path) as before:
                    file.write_bytes(before.read_bytes())
            getattr(H5Writer(file), method)(*arguments)


class S3Deleter(_Objects, StorageDeleter):
    """Deletes an object, or one key of it.

    Args:
        path: URL of the object, s3://BUCKET/KEY.
    """

    def __init__(self, path: PathLike) -> None:
        super().__init__(path)

    def delete(self, key: str | None = None) -> None:
        """Delete the value under a key, or the object without a key; ignore missing ones."""
        if key is None:
            object_store.delete(self.path)
        elif object_store.exists(self.path):
            with object_store.downloaded(self.path) as file:
                H5Deleter(file).delete(key)
                content = file.read_bytes()
            with object_store.uploaded(self.path) as file:
                file.write_bytes(content)
