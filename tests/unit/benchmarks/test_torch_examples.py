"""The benchmark of PyTorch programs measures a step that is really captured."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import torch_examples


def test_the_capture_of_a_small_step() -> None:
    row = torch_examples.capture_row("params_gpt2_tiny.yaml")
    assert row.met
    found = re.search(r"([0-9,]+) operations", row.name)
    assert found is not None
    assert int(found.group(1).replace(",", "")) > 500


def test_every_example_and_its_parameters_exist() -> None:
    models = Path(torch_examples.ROOT) / "models"
    for example in torch_examples.EXAMPLES:
        assert (models / example.name / "pytorch" / "configs" / example.params).is_file()
    assert len({example.name for example in torch_examples.EXAMPLES}) == 4
