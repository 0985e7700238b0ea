"""Components of a batch, which have one name everywhere, in either framework."""

from __future__ import annotations

import dataclasses
import re
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch
from torch.utils.data import DataLoader

from input_analyzer.examine import examine
from input_analyzer.measure.link import Order
from input_analyzer.standalone import program_of, tensorflow_batches
from input_rules.errors import ComponentError

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
