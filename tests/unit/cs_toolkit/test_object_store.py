"""Checkpoints in an S3 store: a small server on loopback, and boto3 as the client of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
import torch

import cstorch
from cs_compat.appliance.storage import (
    H5Reader,
    H5Writer,
    S3Deleter,
    S3Reader,
    S3Writer,
    StorageDeleter,
    StorageReader,
    StorageWriter,
)
from cs_toolkit import object_store
from cs_toolkit.object_store import ObjectStoreError

pytest.importorskip("boto3")


class _Store(BaseHTTPRequestHandler):
    """Objects in memory: PUT, GET, HEAD, DELETE and the list of a bucket."""

    objects: dict[str, bytes]
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            body = _without_chunks(body)
        self.objects[self._key()] = body
        self._answer(200)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "/" not in self._key():
            self._answer(200, self._listed(query.get("prefix", [""])[0]))
        else:
            self._answer_object()

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def do_DELETE(self) -> None:
        self.objects.pop(self._key(), None)
        self._answer(204)

    def log_message(self, *args: object) -> None:
        pass

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    def _answer_object(self) -> None:
        content = self.objects.get(self._key())
        if content is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, content)
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        part = content[int(first) : int(last or len(content)) + 1]
        self._answer(206, part, f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}")

    def _listed(self, prefix: str) -> bytes:
        bucket, found = self._key().rstrip("/"), []
        for key, content in sorted(self.objects.items()):
            name = key.removeprefix(f"{bucket}/")
            if name.startswith(prefix):
                found.append(f"<Contents><Key>{name}</Key><Size>{len(content)}</Size></Contents>")
        return f"<ListBucketResult><Name>{bucket}</Name>{''.join(found)}</ListBucketResult>".encode()

    def _answer(self, status: int, content: bytes = b"", content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{md5(content).hexdigest()}"')
        self.send_header("Last-Modified", formatdate(usegmt=True))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _without_chunks(body: bytes) -> bytes:
    """The body of a request whose parts each have their size in front."""
    content = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        count = int(size.partition(b";")[0], 16)
        if not count:
            break
        content, body = content + body[:count], body[count + 2 :]
    return content


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """The objects of a store that AWS's variables name."""
    kept: dict[str, bytes] = {}
    handler = type("Handler", (_Store,), {"objects": kept})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_checkpoint_goes_to_a_store_and_comes_back(objects: dict[str, bytes]) -> None:
    state = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "step": 3}
    cstorch.save(state, "s3://bucket/run/checkpoint_3.mdl")
    assert list(objects) == ["bucket/run/checkpoint_3.mdl"]
    # a path that went through pathlib has one slash less
    loaded = cstorch.load(Path("s3://bucket/run/checkpoint_3.mdl"))
    assert torch.equal(loaded["model"]["weight"], state["model"]["weight"])
    assert loaded["step"] == 3
    metadata = S3Reader("s3://bucket/run/checkpoint_3.mdl").global_metadata
    assert metadata["__cstorch_version__"]


def test_readers_writers_and_deleters_are_chosen_by_the_path(
    objects: dict[str, bytes], tmp_path: Path
) -> None:
    file, url = str(tmp_path / "file.h5"), "s3://bucket/key"
    assert StorageReader.get_type(file) is H5Reader
    assert StorageReader.get_type(url) is S3Reader
    assert not StorageWriter.is_valid_path("http://host/file")
    assert not H5Writer.is_valid_path(url)
    for path in (file, url):
        assert not StorageReader.path_exists(path)
        writer = StorageWriter.get(path)
        writer.write("a", np.arange(4), {"unit": "m"})
        writer.write("b", b"bytes")
        writer.write("c", metadata={"count": 2})
        reader = StorageReader.get(path)
        assert reader.exists()
        value, metadata = reader.read("a")
        assert value is not None
        assert (value.tolist(), metadata) == ([0, 1, 2, 3], {"unit": "m"})
        value, _ = reader.read("b")
        assert value is not None
        assert value.tobytes() == b"bytes"
        assert reader.read("c") == (None, {"count": 2})
        StorageDeleter.get(path).delete("a")
        with pytest.raises(KeyError):
            reader.read("a")
        StorageDeleter.get(path).delete()
        assert not StorageWriter.path_exists(path)
    with pytest.raises(ValueError, match="neither the path of a file nor the URL of an object"):
        StorageReader.get("http://host/file")


def test_one_object_is_deleted_and_no_other_whose_name_begins_alike(objects: dict[str, bytes]) -> None:
    objects |= {"bucket/step_1": b"1", "bucket/step_10": b"10", "bucket/step_1/part": b"p"}
    S3Deleter("s3://bucket/step_1").delete()
    assert list(objects) == ["bucket/step_10"]
    assert not object_store.exists("s3://bucket/step_1")
    assert [item.key for item in S3Writer("s3://bucket/step_10").s3_bucket.objects.all()] == ["step_10"]


def test_missing_objects_profiles_and_packages_are_named(
    objects: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ObjectStoreError, match=r"s3://bucket/none: .*404.*check bucket and key"):
        cstorch.load("s3://bucket/none")
    monkeypatch.setattr(object_store.settings, "profile", "nobody")
    with pytest.raises(ObjectStoreError, match="nobody"):
        cstorch.load("s3://bucket/none")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(
        ObjectStoreError, match=r"needs boto3: install the toolkit's extra 'cs-toolkit\[s3\]'"
    ):
        cstorch.save({}, "s3://bucket/none")
