"""The records of FC-MNIST without a framework: scikit-learn's digits, and the IDX files of MNIST."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.common.data import DataError

SIDE = 28
PIXELS = SIDE * SIDE
TEST_FRACTION = 0.2

IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049
IMAGES_HEADER, LABELS_HEADER = 16, 8
"""Bytes of the headers."""


def digits(split: str) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The 1797 real digits that come with scikit-learn; a fifth is for tests.

    Read from its file: importing scikit-learn takes half as long as importing TensorFlow.

    Returns:
        Images [count, 8, 8] with values from 0 to 16, and labels [count].

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    records = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images, labels = records[:, :-1], records[:, -1]
    order = np.random.default_rng(0).permutation(len(images))
    num_test = math.ceil(TEST_FRACTION * len(order))
    chosen = order[:num_test] if split == "test" else order[num_test:]
    return images[chosen].reshape(-1, 8, 8).astype(np.float32), labels[chosen].astype(np.int32)


def idx_files(data_dir: Path, split: str) -> tuple[Path, Path, int]:
    """The files of MNIST's images and labels as its authors distribute them, plain or compressed.

    Returns:
        The two paths, and the number of records.

    Raises:
        DataError: one is missing, damaged or no such file, or they do not belong together.
    """
    stem = "train" if split == "train" else "t10k"
    images_path = _find(data_dir, f"{stem}-images", "idx3-ubyte")
    labels_path = _find(data_dir, f"{stem}-labels", "idx1-ubyte")
    count, rows, columns = _idx_shape(images_path, IMAGES_MAGIC, 3)
    (num_labels,) = _idx_shape(labels_path, LABELS_MAGIC, 1)
    if (rows, columns) != (SIDE, SIDE):
        raise DataError(f"'{images_path}' has images of {rows}x{columns} pixels, expected {SIDE}x{SIDE}")
    if num_labels != count:
        raise DataError(
            f"'{images_path}' has {count} images, '{labels_path}' {num_labels} labels; expected as many"
        )
    return images_path, labels_path, count


def _find(data_dir: Path, stem: str, kind: str) -> Path:
    names = [f"{stem}{dot}{kind}{suffix}" for dot in "-." for suffix in ("", ".gz")]
    for name in names:
        if (data_dir / name).is_file():
            return data_dir / name
    raise DataError(f"'{data_dir}' has no MNIST file '{names[0]}', plain or .gz; check --data_dir")


def _idx_shape(path: Path, magic: int, rank: int) -> tuple[int, ...]:
    """Sizes that the header of an IDX file of bytes declares, checked against the size of the file.

    Raises:
        DataError: it is no such file, or it is cut off.
    """
    header_size = 4 * (1 + rank)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(header_size)
        size = _unpacked_size(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}; download it again") from error
    if len(header) < header_size:
        raise DataError(f"'{path}' is cut off: {len(header)} bytes, the header alone has {header_size}")
    found, *sizes = struct.unpack(f">{1 + rank}I", header)
    if found != magic:
        raise DataError(
            f"'{path}' begins with the magic number {found}, expected {magic}: no IDX file of MNIST"
        )
    expected = header_size + math.prod(sizes)
    if size != expected:
        raise DataError(
            f"'{path}' has {size} bytes, but its header declares {expected}: it is cut off or damaged; "
            "download it again"
        )
    return tuple(sizes)


def _unpacked_size(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    # Unpacked to its end: the size that a gzip file declares there says nothing when the file is cut off.
    with gzip.open(path) as file:
        return file.seek(0, os.SEEK_END)
