"""The input functions of FC-MNIST: digits of scikit-learn, IDX files of MNIST, shards."""

from __future__ import annotations

import gzip
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

Modules = dict[str, Any]


def params(**groups: Any) -> dict[str, Any]:
    train = {"batch_size": 16, "shuffle_seed": 1, "data_dir": None}
    return {
        "train_input": {**train, **groups.get("train", {})},
        "eval_input": {**train, **groups.get("eval", {})},
    }


def set_shard(monkeypatch: pytest.MonkeyPatch, workers: int, index: int) -> None:
    cluster = {"chief": ["a:1"], "worker": [f"a:{2 + i}" for i in range(workers)]}
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
    )


def write_idx(path: Path, magic: int, array: np.ndarray) -> None:
    content = struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """MNIST in small: image i has the value i everywhere, its label is i modulo 10."""
    for stem, count, suffix in (("train", 48, ".gz"), ("t10k", 20, "")):
        images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 28, 28))
        write_idx(tmp_path / f"{stem}-images-idx3-ubyte{suffix}", 2051, images)
        write_idx(tmp_path / f"{stem}-labels-idx1-ubyte{suffix}", 2049, images[:, 0, 0] % 10)
    return tmp_path


def test_digits(fc_mnist: Modules) -> None:
    data = fc_mnist["data"]
    pixels, labels = next(iter(data.train_input_fn(params())))
    assert (pixels.shape, pixels.dtype) == ((16, 784), tf.float32)
    assert (labels.shape, labels.dtype) == ((16,), tf.int32)
    assert float(tf.reduce_min(pixels)) == 0.0
    assert 0.9 < float(tf.reduce_max(pixels)) <= 1.0
    tests = list(data.eval_input_fn(params(eval={"batch_size": 40})))
    assert len(tests) == 9
    assert set(np.concatenate([labels for _, labels in tests])) == set(range(10))


def test_training_and_test_digits_are_different_images(fc_mnist: Modules) -> None:
    data = fc_mnist["data"]
    train = data._digits("train").images.numpy()
    tests = data._digits("test").images.numpy()
    assert (len(train), len(tests)) == (1437, 360)
    assert not {image.tobytes() for image in train} & {image.tobytes() for image in tests}


def test_training_input_has_one_static_shape(fc_mnist: Modules) -> None:
    dataset = fc_mnist["data"].train_input_fn(params())
    assert [spec.shape.is_fully_defined() for spec in dataset.element_spec] == [True, True]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shards_together_deliver_every_record_once(
    fc_mnist: Modules, mnist: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    delivered: Counter[int] = Counter()
    epoch_batches = 48 // workers // 8
    for index in range(workers):
        set_shard(monkeypatch, workers, index)
        settings = params(train={"batch_size": 8, "data_dir": str(mnist)})
        for pixels, _ in fc_mnist["data"].train_input_fn(settings).take(epoch_batches):
            delivered.update(round(float(value) * 255) for value in pixels[:, 0])
    assert delivered == Counter(range(48))


def test_every_epoch_has_another_order(fc_mnist: Modules, mnist: Path) -> None:
    settings = params(train={"batch_size": 48, "data_dir": str(mnist)})
    first, second = (
        labels.numpy().tolist() for _, labels in fc_mnist["data"].train_input_fn(settings).take(2)
    )
    assert first != second
    assert sorted(first) == sorted(second)


def test_idx_files_plain_and_compressed(fc_mnist: Modules, mnist: Path) -> None:
    data = fc_mnist["data"]
    settings = params(eval={"batch_size": 20, "data_dir": str(mnist)})
    [(pixels, labels)] = data.eval_input_fn(settings)
    assert labels.numpy().tolist() == [i % 10 for i in range(20)]
    assert pixels.numpy()[7] == pytest.approx(np.full(784, 7 / 255), rel=1e-6)
    assert data._load({"data_dir": str(mnist)}, "train").count == 48


def test_unusable_idx_files(fc_mnist: Modules, mnist: Path) -> None:
    data = fc_mnist["data"]
    error = data.DataError

    def load(split: str) -> None:
        data._load({"data_dir": str(mnist)}, split)

    labels = mnist / "t10k-labels-idx1-ubyte"
    whole = labels.read_bytes()
    labels.write_bytes(whole[:-3])
    with pytest.raises(error, match=r"t10k-labels-idx1-ubyte' has 25 bytes, but its header declares 28"):
        load("test")
    labels.write_bytes(struct.pack(">2I", 2051, 20) + whole[8:])
    with pytest.raises(error, match="magic number 2051, expected 2049"):
        load("test")
    labels.write_bytes(whole[:5])
    with pytest.raises(error, match="truncated: 5 bytes"):
        load("test")
    write_idx(labels, 2049, np.zeros(19, np.uint8))
    with pytest.raises(error, match=r"20 images, .* 19 labels"):
        load("test")
    compressed = mnist / "train-images-idx3-ubyte.gz"
    compressed.write_bytes(compressed.read_bytes()[:-9])
    with pytest.raises(error, match=r"train-images-idx3-ubyte\.gz"):
        load("train")
    compressed.unlink()
    with pytest.raises(error, match=r"no MNIST file 'train-images-idx3-ubyte'.*--data_dir"):
        load("train")


def test_a_shard_that_fills_no_batch(fc_mnist: Modules, mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_shard(monkeypatch, 3, 0)
    with pytest.raises(fc_mnist["data"].DataError, match="this task has 7 test records"):
        fc_mnist["data"].eval_input_fn(params(eval={"data_dir": str(mnist)}))
