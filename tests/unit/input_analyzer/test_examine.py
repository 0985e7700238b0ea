"""Common records of two readers of an input, by digests."""

from __future__ import annotations

import dataclasses
import re
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from torch.utils.data import DataLoader

from input_analyzer.function_program import program_of, tensorflow_batches
from input_analyzer.measure.examine import Overlap, Reading, epoch_samples, examine, overlap
from input_analyzer.measure.link import Order
from input_rules.errors import ComponentError
from input_rules.tf.pipeline import trace

SAME, SOME, NONE = Overlap.SAME, Overlap.SOME, Overlap.NONE


def reading(text: str) -> Reading:
    """A letter a record; a full stop is the end of the epoch."""
    return Reading(tuple(text.rstrip(".")), text.endswith("."))


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ("abc", "abcd", SAME),  # cut off after a second
        ("abc", "abc.", SAME),
        ("abc.", "cab.", SAME),  # the whole epoch in another order
        ("abc", "acb", SOME),
        ("abc.", "abcd", SOME),  # one has an end that the other one does not have
        ("abcdef.", "defghi.", SOME),
        ("abcd.", "defg.", NONE),  # one record fills up what does not divide
        ("abcd", "defg", SOME),
        ("abc", "def", NONE),
        ("aaa.", "aaa.", None),
        ("a", "b", None),
        (".", ".", None),
    ],
)
def test_two_readers_overlap_partly_fully_or_not(first: str, other: str, expected: Overlap | None) -> None:
    ours, theirs = reading(first), reading(other)
    assert overlap(ours, theirs, ours) is expected


def test_of_records_that_change_by_themselves_nothing_is_known() -> None:
    assert overlap(reading("abc."), reading("def."), reading("ghi.")) is None


def samples_of(make: Callable[[], Any]) -> int | None:
    return epoch_samples(trace(make).pipeline)


def test_an_epoch_of_batches_of_a_library(tmp_path: Path) -> None:
    picture = tf.io.encode_png(np.zeros((4, 4, 3), np.uint8)).numpy()
    for number in range(6):
        (tmp_path / "images" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / str(number % 2) / f"{number}.png").write_bytes(picture)
    (tmp_path / "table.csv").write_text("x,y\n" + "1,2\n" * 20)

    def images() -> Any:
        folder = tmp_path / "images"
        return tf.keras.utils.image_dataset_from_directory(folder, image_size=(4, 4), batch_size=4).repeat()

    def table() -> Any:
        return tf.data.experimental.make_csv_dataset(str(tmp_path / "table.csv"), 8, label_name="y")

    assert samples_of(images) == 8  # 6 images are 2 batches
    assert samples_of(table) is None


def test_an_epoch_of_what_is_batched_again() -> None:
    assert samples_of(lambda: tf.data.Dataset.range(100).batch(10).repeat()) == 100
    assert samples_of(lambda: tf.data.Dataset.range(20).batch(4, True).rebatch(2, True)) is None


Named = namedtuple("Named", "x y")
X = torch.zeros(4, 3)
WIDE = np.zeros((4, 2))


@dataclasses.dataclass
class Pair:
    x: Any
    y: Any


class _Link:
    def send(self, **message: Any) -> None:
        pass


def examined(make: Callable[[], Any]) -> dict[str, Any]:
    order = Order(purpose="examine", socket="", stage_seconds=0.0)
    return examine(program_of(make, make()), order, _Link())  # type: ignore[arg-type]


def of_rows(collate: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: DataLoader(torch.zeros(64, 3), 4, collate_fn=collate)


def as_dataset(batch: Any) -> Any:
    return lambda: tf.data.Dataset.from_tensors(batch).repeat(64)


@pytest.mark.parametrize(
    "make",
    [
        of_rows(lambda rows: Pair(X, Named(WIDE, {"n": WIDE}))),
        of_rows(lambda rows: {"a": (WIDE, X), "s": WIDE, "name": "text"}),
        as_dataset(Named(WIDE, {"n": WIDE, "a": X.numpy()})),
        as_dataset(({"x": WIDE}, X.numpy())),
        as_dataset(WIDE),
    ],
    ids=["dataclass", "dict", "tf-namedtuple", "tf-pair", "tf-array"],
)
def test_findings_call_a_component_what_the_report_calls_it(make: Callable[[], Any]) -> None:
    facts = examined(make)
    wide = [part["name"] for part in facts["components"] if part["dtype"] == "float64"]
    found = [finding["message"] for finding in facts["findings"] if "wide" in finding["id"]]
    said = [re.split(r" is | are ", message)[0] for message in found]
    assert " and ".join(wide) == " and ".join(said)
    assert all(name.startswith("element") for name in wide)
    assert wide


def test_components_of_a_dataset_that_cannot_be_streamed() -> None:
    sparse = tf.data.Dataset.from_tensors(tf.sparse.from_dense([[1, 0]]))
    with pytest.raises(ComponentError, match="is SparseTensor"):
        next(tensorflow_batches(sparse))


def test_text_of_a_dataset_is_counted() -> None:
    number, words = next(tensorflow_batches(tf.data.Dataset.from_tensors((1.0, ["word", "long"]))))
    assert number == 1.0
    assert (words.dtype, words.shape, words.nbytes) == ("text", (2,), 8)
