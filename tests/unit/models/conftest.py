"""Imports the FC-MNIST example as its own directory sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FC_MNIST = Path(__file__).parents[3] / "models" / "fc_mnist" / "tf"
MODULES = ("data", "model", "params", "run")


@pytest.fixture(scope="session")
def fc_mnist_dir() -> Path:
    return FC_MNIST


@pytest.fixture(scope="session")
def fc_mnist() -> Iterator[dict[str, ModuleType]]:
    """Its modules by name; their plain names are free again afterwards."""
    sys.path.insert(0, str(FC_MNIST))
    try:
        modules = {name: import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(FC_MNIST))
    yield modules
    for name in MODULES:
        sys.modules.pop(name, None)
