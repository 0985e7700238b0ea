"""Objects of an S3 store: each is an HDF5 file, as `cstorch.save` writes it. Needs the extra `s3`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from cs_compat.appliance.storage.base_storage import (
    PathLike,
    StorageDeleter,
    StorageReader,
    StorageWriter,
)
from cs_compat.appliance.storage.h5_storage import H5Deleter, H5Reader, H5Writer
from cs_toolkit import object_store


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
