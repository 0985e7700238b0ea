"""Random numbers that a module draws when it is imported: other ones in every worker of a run."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from input_analyzer.examine import examine
from input_analyzer.import_draws import import_watched
from input_analyzer.measure.link import Order
from input_analyzer.standalone import load, program_of

_BY_LISTED = """
import numpy as np, tensorflow as tf
{seed}
PERM = np.random.permutation(100)
def f():
    return tf.data.Dataset.from_tensor_slices(PERM).batch(4)
"""
_BY_LOADER = """
import torch
{seed}
DATA = torch.randperm(100)
def f():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(DATA), batch_size=4)
"""


@pytest.mark.parametrize(
    ("code", "drawn"),
    [
        ("np.random.permutation(3)", True),
        ("random.random()", True),
        ("np.random.default_rng().permutation(3)", True),
        ("np.random.permutation(3); np.random.seed(0)", True),
        ("np.random.seed(); np.random.permutation(3)", True),
        ("kept = random.getstate(); random.seed(1); random.setstate(kept); random.random()", True),
        ("np.random.seed(0); np.random.permutation(3)", False),
        ("np.random.default_rng(1).permutation(3)", False),
        ("np.random.default_rng()", False),
        ("import keras; keras.utils.set_random_seed(1); random.random()", False),
        ("import keras; keras.layers.Dense(2)", False),
        ("import torch; torch.randperm(3)", True),
        ("import torch; torch.manual_seed(1); torch.randperm(3)", False),
    ],
)
def test_what_is_drawn_without_a_seed_is_noticed(code: str, drawn: bool) -> None:
    plain, numpy, functions = random.getstate(), np.random.get_state(), (random.seed, np.random.seed)
    try:
        with import_watched() as has_drawn:
            exec(code, {"np": np, "random": random})
            assert has_drawn() is drawn
        assert (random.seed, np.random.seed) == functions
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)


@pytest.mark.parametrize(
    ("text", "seed"), [(_BY_LISTED, "np.random.seed(1)"), (_BY_LOADER, "torch.manual_seed(1)")]
)
def test_parts_of_an_order_drawn_at_import_are_not_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, seed: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])

    def proved(name: str, seed: str) -> tuple[bool, list[str]]:
        path = tmp_path / f"{name}.py"
        path.write_text(text.format(seed=seed))
        function = load(f"{path}:f")
        order = Order(purpose="examine", socket="", apply=True, stage_seconds=0.0)
        link: Any = SimpleNamespace(send=lambda **said: None)
        found = examine(program_of(function, function()), order, link)
        (missing,) = (one for one in found["findings"] if one["id"] == "shard-missing")
        return missing["proved"], [
            change for change in found["applied"] if re.search("shard|one of 2", change)
        ]

    assert proved("drawn_unseeded", "") == (False, [])
    alike, changes = proved("drawn_seeded", seed)
    assert alike
    assert changes
