"""Datasets that read whole batches: the change of the source, and that it makes the same batches."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
import torch

from input_analyzer.batch_forms import SINGLE_RECORDS
from input_analyzer.gains import choose_form, plan_forms
from input_analyzer.source_changes import add_diffs, plan_changes
from input_analyzer.torch import compare
from input_rules.findings import Finding
from input_rules.input_export import InputProgram

from .torch_loaders import examined

HEAD = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Arrays(Dataset):
    def __init__(self):
        self.x = np.random.default_rng(1).integers(0, 256, (64, 4, 4), np.uint8)
        self.y = torch.arange(64)
        self.names = [str(number) for number in range(64)]
        self.mean = 127.5
        self.weights = np.ones(64)
        self.columns = {"ids": np.arange(256).reshape(64, 4)}

    def __len__(self):
        return len(self.x)

"""
LOADER = """
def make():
    dataset = Data()
    return DataLoader(dataset, batch_size=8, shuffle=True, drop_last=True)
"""
GETITEM = """
class Data(Arrays):
    def __getitem__(self, index):
        image = torch.from_numpy(self.x[index]).float()
        return {"image": (image - self.mean) / 255.0, "label": self.y[index]}

"""


@pytest.fixture
def load(load_source: Callable[[str], ModuleType]) -> Callable[[str], ModuleType]:
    """Provide a function that imports a program after the common head."""
    return lambda text: load_source(HEAD + dedent(text))


def findings_of(module: Any) -> list[Finding]:
    return [one for one in examined(lambda shard: module.make()).findings if one.id == SINGLE_RECORDS]


def input_of(module: Any) -> InputProgram:
    return InputProgram("torch", module.make, lambda shard: module.make(), lambda shard: iter(()))


def propose(module: Any) -> Finding | None:
    findings = findings_of(module)
    forms = plan_forms(findings)
    kept = choose_form(findings, compare.choose_form(input_of(module), forms)) if forms else findings
    return next(iter(add_diffs(kept)), None)


def added_lines(finding: Finding | None) -> list[str]:
    assert finding is not None
    assert finding.diff is not None, plan_changes([finding]).unchanged
    return [line[1:].strip() for line in finding.diff.splitlines()[2:] if line[0] == "+" and line[1:].strip()]


ADDED = ["# A loader reads a whole batch: the index is a list.", "__getitems__ = __getitem__"]
CONVERT = "collate_fn=torch.utils.data.default_convert)"


def test_a_dataset_reads_whole_batches(load: Callable[[str], ModuleType]) -> None:
    module = load(GETITEM + LOADER)
    found = propose(module)
    assert added_lines(found) == [
        *ADDED,
        f"return DataLoader(dataset, batch_size=8, shuffle=True, drop_last=True, {CONVERT}",
    ]
    assert module.make().collate_fn is not torch.utils.data.default_convert, "the program is unchanged"
    assert not hasattr(module.Data, "__getitems__")


def test_arrays_may_be_in_a_dictionary(load: Callable[[str], ModuleType]) -> None:
    text = """
    class Data(Arrays):
        def __getitem__(self, index):
            return {"input_ids": self.columns["ids"][index], "labels": self.columns["ids"][index]}

    """
    assert added_lines(propose(load(dedent(text) + LOADER)))[:2] == ADDED


def test_numbers_become_tensors(load: Callable[[str], ModuleType]) -> None:
    text = """
    class Data(Arrays):
        def __getitem__(self, index):
            image = self.x[index].astype(np.float32)
            return image, int(self.y[index]), float(self.columns["ids"][index] * 0.5)

    """
    text = dedent(text).replace('self.columns["ids"][index]', "self.y[index]")
    assert added_lines(propose(load(text + LOADER)))[:-1] == [
        ADDED[0],
        "def __getitems__(self, index):",
        "image = self.x[index].astype(np.float32)",
        "return image, torch.as_tensor(self.y[index]).long(), torch.as_tensor(self.y[index] * 0.5).double()",
    ]


def test_all_loaders_of_the_dataset_are_changed(load: Callable[[str], ModuleType]) -> None:
    other = "\ndef evaluate():\n    return DataLoader(Data(), 16), DataLoader(TensorDataset(torch.ones(2)))\n"
    assert added_lines(propose(load(GETITEM + LOADER + other)))[-1] == (
        f"return DataLoader(Data(), 16, {CONVERT}, DataLoader(TensorDataset(torch.ones(2)))"
    )
    unknown = "\ndef evaluate(dataset):\n    return DataLoader(dataset, 16)\n"
    (finding,) = findings_of(load(GETITEM + LOADER + unknown))
    assert plan_changes([finding]).unchanged[0][1] == "another DataLoader may read the dataset, too"


def test_tensors_are_read_by_batches(load: Callable[[str], ModuleType]) -> None:
    module = load(
        """
        def make():
            tensors = TensorDataset(torch.randn(64, 3), torch.arange(64))
            return DataLoader(tensors, 8, drop_last=True)
        """
    )
    assert added_lines(propose(module)) == [
        "tensors.__getitems__ = tensors.__getitem__  # whole batches",
        f"return DataLoader(tensors, 8, drop_last=True, {CONVERT}",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "return self.x[index] if self.y[index] > 3 else self.x[0]",  # chooses by content
        "return self.x[index][0]",  # selects a part of the record, which would be a record of the batch
        "return self.x[index] + np.random.rand(4, 4)",
        "return torch.tensor(int(self.names[index]))",
        "return self.x[index] * index",
        "return sum(self.x[number] for number in range(index, index + 1))",
        "return torch.nn.functional.pad(torch.from_numpy(self.x[index]), (1, 1))",
    ],
)
def test_records_that_need_single_calls_are_left_alone(body: str, load: Callable[[str], ModuleType]) -> None:
    text = f"class Data(Arrays):\n    def __getitem__(self, index):\n        {body}\n\n"
    assert findings_of(load(text + LOADER)) == []


def test_batches_that_would_differ_are_not_proposed(load: Callable[[str], ModuleType]) -> None:
    """The mean image is subtracted from each record; a batch of records would need another shape."""
    text = GETITEM.replace("self.mean)", "self.y[index])")
    module = load(text + LOADER)
    assert findings_of(module), "its code allows it"
    assert propose(module) is None


def test_as_many_columns_as_records_hide_nothing(load: Callable[[str], ModuleType]) -> None:
    """Each row is multiplied by a weight; with batches of 4, all weights would meet all rows."""
    text = """
    class Data(Arrays):
        def __getitem__(self, index):
            return self.columns["ids"][index] * self.weights[index]

    """
    loader = LOADER.replace("batch_size=8", "batch_size=4")
    module = load(dedent(text) + loader)
    assert findings_of(module), "its code allows it"
    assert propose(module) is None


def test_the_rate_with_whole_batches_is_measured(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TURN_S", "WARM_UP_S"):
        monkeypatch.setattr(f"input_analyzer.gains.{name}", 0.05)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in worker processes; threads of a busy machine wait for each other
    try:
        module = load(GETITEM + LOADER.replace("batch_size=8", "batch_size=64"))
        forms = plan_forms(findings_of(module))
        ratio = compare.compare(input_of(module), {SINGLE_RECORDS: None}, 1.5, lambda: None, forms["batch"])
    finally:
        torch.set_num_threads(threads)
    assert ratio is not None
    assert ratio[0] > 1.2, "64 calls become one"
