"""Objects of an S3 store by their URLs, `s3://BUCKET/KEY`.

Needs the extra `s3` (boto3), which is imported when the first URL is used. Credentials, region and address
come from AWS's variables and files (AWS_PROFILE, AWS_ENDPOINT_URL, ~/.aws).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cs_toolkit.errors import ToolkitError
from cs_toolkit.temporary import temporary_directory

# `Path("s3://bucket/key")` has one slash after the colon.
_URL = re.compile(r"s3:/{1,2}(?P<bucket>[^/]+)/(?P<key>.+)")
_PREFIX = "cs-object-"

PathLike = str | os.PathLike[str]


class ObjectStoreError(ToolkitError):
    """An object cannot be read, written or deleted, or boto3 is missing."""


class StoreSettings:
    """Settings of the store for this process.

    Attributes:
        profile: Name of a profile in AWS's files; None for the one that AWS_PROFILE names.
    """

    def __init__(self) -> None:
        self.profile: str | None = None


settings = StoreSettings()


def is_url(path: PathLike) -> bool:
    """Return True if a path is the URL of an object."""
    return _URL.fullmatch(os.fspath(path)) is not None


def split(url: PathLike) -> tuple[str, str]:
    """Return bucket and key of a URL.

    Raises:
        ObjectStoreError: It is not the URL of an object.
    """
    found = _URL.fullmatch(os.fspath(url))
    if found is None:
        raise ObjectStoreError(f"got {os.fspath(url)!r}, expected the URL of an object: s3://BUCKET/KEY")
    return found["bucket"], found["key"]


def bucket_of(url: PathLike) -> Any:
    """Return the boto3 resource of a URL's bucket.

    Raises:
        ObjectStoreError: boto3 is missing, or a setting cannot be used.
    """
    bucket, _ = split(url)
    try:
        import boto3
    except ImportError as error:
        raise ObjectStoreError(
            f"{os.fspath(url)} is in an S3 store, which needs boto3: install the toolkit's extra "
            "'cs-toolkit[s3]' into the environment of programs"
        ) from error
    with _reported(url):
        return boto3.session.Session(profile_name=settings.profile).resource("s3").Bucket(bucket)


def exists(url: PathLike) -> bool:
    """Return True if an object with this URL exists, or objects below it."""
    _, key = split(url)
    objects = bucket_of(url).objects
    with _reported(url):
        found = objects.filter(Prefix=key)
        return any(item.key == key or item.key.startswith(f"{key}/") for item in found)


def delete(url: PathLike) -> None:
    """Delete an object, and those below it, if it exists."""
    bucket, key = bucket_of(url), split(url)[1]
    with _reported(url):
        for item in bucket.objects.filter(Prefix=key):
            if item.key == key or item.key.startswith(f"{key}/"):
                item.delete()


@contextmanager
def uploaded(url: PathLike) -> Iterator[Path]:
    """Yield a file for the body to write, which becomes the object at the end.

    An error in the body leaves the object as it was.
    """
    bucket, key = bucket_of(url), split(url)[1]
    with temporary_directory(_PREFIX) as folder:
        file = folder / "object"
        yield file
        with _reported(url):
            bucket.upload_file(str(file), key)


@contextmanager
def downloaded(url: PathLike) -> Iterator[Path]:
    """Yield a file with the contents of an object; it is removed after the body."""
    bucket, key = bucket_of(url), split(url)[1]
    with temporary_directory(_PREFIX) as folder:
        file = folder / Path(key).name
        with _reported(url):
            bucket.download_file(key, str(file))
        yield file


@contextmanager
def _reported(url: PathLike) -> Iterator[None]:
    """Turn errors of boto3 into the toolkit's."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise ObjectStoreError(
            f"{os.fspath(url)}: {error}; check bucket and key, the credentials (AWS_PROFILE, ~/.aws) and, "
            "for a store other than AWS, AWS_ENDPOINT_URL"
        ) from error
