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
    """Load the 1797 handwritten digits of scikit-learn; a fifth of them is the test split.

    Returns:
        Images [count, 8, 8] with values from 0 to 16, and labels [count].

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    # Read from its file: importing scikit-learn takes half as long as importing TensorFlow.
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
    """Find the files of MNIST's images and labels as its authors distribute them, plain or compressed.

    Returns:
        The two paths, and the number of records.

    Raises:
        DataError: A file is missing, damaged or not an IDX file, or the two do not match.
    """
    stem = "train" if split == "train" else "t10k"
    images_path = _find(data_dir, f"{stem}-images", "idx3-ubyte")
    labels_path = _find(data_dir, f"{stem}-labels", "idx1-ubyte")
    count, rows, columns = _idx_shape(images_path, IMAGES_MAGIC, 3)
    (num_labels,) = _idx_shape(labels_path, LABELS_MAGIC, 1)
    if (rows, columns) != (SIDE, SIDE):
        raise DataError(f"'{images_path}' has images of {rows}x{columns} pixels, expected {SIDE}x{SIDE}")
    if num_labels != count:
        raise DataError(f"'{images_path}' has {count} images, but '{labels_path}' has {num_labels} labels")
    return images_path, labels_path, count


def _find(data_dir: Path, stem: str, kind: str) -> Path:
    names = [f"{stem}{dot}{kind}{suffix}" for dot in "-." for suffix in ("", ".gz")]
    for name in names:
        if (data_dir / name).is_file():
            return data_dir / name
    raise DataError(f"'{data_dir}' has no MNIST file '{names[0]}', plain or .gz; check --data_dir")


def _idx_shape(path: Path, magic: int, rank: int) -> tuple[int, ...]:
    """Return the sizes in the header of an IDX file of bytes, checked against the size of the file.

    Raises:
        DataError: It is not such a file, or it is truncated.
    """
    header_size = 4 * (1 + rank)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(header_size)
        size = _measure_unpacked(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}; download it again") from error
    if len(header) < header_size:
        raise DataError(f"'{path}' is truncated: {len(header)} bytes, but the header has {header_size}")
    found, *sizes = struct.unpack(f">{1 + rank}I", header)
    if found != magic:
        raise DataError(
            f"'{path}' starts with the magic number {found}, expected {magic}: not an IDX file of MNIST"
        )
    expected = header_size + math.prod(sizes)
    if size != expected:
        raise DataError(
            f"'{path}' has {size} bytes, but its header declares {expected}: it is truncated or damaged; "
            "download it again"
        )
    return tuple(sizes)


def _measure_unpacked(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    # Unpack the whole file: the size that is stored at its end is wrong if the file is truncated.
    with gzip.open(path) as file:
        return file.seek(0, os.SEEK_END)
