"""The example programs, imported as their own directories see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def fc_mnist_dir() -> Path:
    return Path(__file__).parents[3] / "models" / "fc_mnist" / "tf"


@pytest.fixture(scope="module")
def fc_mnist(example: Callable[..., Any]) -> Iterator[dict[str, ModuleType]]:
    with example("fc_mnist") as modules:
        yield modules
