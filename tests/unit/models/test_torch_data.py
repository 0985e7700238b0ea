"""The inputs of the examples in PyTorch: files of MNIST, hidden bytes, patterns, shards."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from cstorch.input import datasets
from models.bert.pytorch import data as bert
from models.bert.pytorch.model import IGNORED
from models.common.data import DataError
from models.common.pytorch.data import Windows, library_bytes
from models.fc_mnist.pytorch import data as fc_mnist
from models.gpt2.pytorch import data as gpt2
from models.resnet.pytorch import data as resnet

MODELS = Path(__file__).parents[3] / "models"
Loader = Callable[[dict[str, Any]], Any]


def params(name: str) -> dict[str, Any]:
    folder = MODELS / name / "pytorch" / "configs"
    file = next(path for path in sorted(folder.glob("*.yaml")) if "tiny" in path.name or "mnist" in path.name)
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Makes this process worker `rank` of `count`."""

    def set_to(rank: int, count: int) -> None:
        monkeypatch.setattr(datasets, "get_streaming_rank", lambda: rank)
        monkeypatch.setattr(datasets, "num_streamers", lambda: count)

    return set_to


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("fc_mnist", fc_mnist.train_dataloader),
        ("resnet", resnet.train_dataloader),
        ("bert", bert.train_dataloader),
        ("gpt2", gpt2.train_dataloader),
    ],
)
def test_workers_in_turn_give_the_batches_of_one(
    name: str, make: Loader, workers: Callable[[int, int], None]
) -> None:
    settings = params(name)
    alone = [batch for batch, _ in zip(make(settings), range(4), strict=False)]
    shared = []
    for rank in range(2):
        workers(rank, 2)
        shared.append([batch for batch, _ in zip(make(settings), range(2), strict=False)])
    for number, batch in enumerate(alone):
        theirs = shared[number % 2][number // 2]
        assert all(torch.equal(x, y) for x, y in zip(batch, theirs, strict=True))


def test_mnist_files_and_digits(tmp_path: Path) -> None:
    settings = params("fc_mnist")
    digits = list(fc_mnist.eval_dataloader(settings))
    assert len(digits) == 9
    assert {int(label) for _, labels in digits for label in labels} == set(range(10))
    assert float(max(pixels.max() for pixels, _ in digits)) <= 1
    images = np.broadcast_to(np.arange(80, dtype=np.uint8)[:, None, None], (80, 28, 28))
    content = struct.pack(">4I", 2051, 80, 28, 28) + images.tobytes()
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    labels = struct.pack(">2I", 2049, 80) + (images[:, 0, 0] % 10).tobytes()
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(labels)
    settings["eval_input"]["data_dir"] = str(tmp_path)
    _, second = fc_mnist.eval_dataloader(settings)
    assert second[1].tolist() == [i % 10 for i in range(40, 80)]
    assert torch.equal(second[0][3], torch.full((784,), 43 / 255))
    settings["eval_input"]["batch_size"] = 81
    with pytest.raises(DataError, match="batch_size is 81, but this task's share of 80 records is smaller"):
        fc_mnist.eval_dataloader(settings)


def test_hidden_bytes_are_the_labels_and_nothing_else_is() -> None:
    settings = params("bert")
    length = settings["train_input"]["max_sequence_length"]
    texts = Windows("train", length)
    masked, kinds = bert.MaskedText(texts, seed=1), []
    for number in range(500):
        ids, labels = masked[number]
        hidden = labels != IGNORED
        assert int(hidden.sum()) == max(1, round(0.15 * length))
        assert torch.equal(torch.where(hidden, labels, ids), texts[number])
        kinds += [
            (int(seen == bert.MASK), int(seen == was))
            for seen, was in zip(ids, labels, strict=True)
            if was != IGNORED
        ]
    mask, kept = np.mean(kinds, axis=0)
    assert 0.75 < mask < 0.85
    assert 0.06 < kept < 0.15


def test_the_text_of_evaluations_is_no_text_of_trainings() -> None:
    train, held_out = Windows("train", 64), Windows("eval", 64)
    text = library_bytes()
    assert bytes(train[0].numpy().astype(np.uint8)) == text[:64].tobytes()
    cut = round(0.95 * len(text))
    assert bytes(held_out[0].numpy().astype(np.uint8)) == text[cut : cut + 64].tobytes()
    assert len(train) == cut // 64
    with pytest.raises(DataError, match="the text of 'eval' has"):
        Windows("eval", len(text))
    ids, following = next(iter(gpt2.eval_dataloader(params("gpt2"))))
    assert torch.equal(ids[:, 1:], following[:, :-1])


def test_images_of_a_class_are_its_pattern_with_noise() -> None:
    settings = params("resnet")
    settings["train_input"]["noise"] = 0.0
    images, classes = next(iter(resnet.train_dataloader(settings)))
    for label in range(settings["model"]["num_classes"]):
        own = images[classes == label]
        assert len(own)
        assert torch.equal(own, own[:1].expand_as(own))
    cells = images.reshape(*images.shape[:2], 4, 4, 4, 4)
    assert torch.equal(cells, cells[:, :, :, :1, :, :1].expand_as(cells))
