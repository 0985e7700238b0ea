"""Programs of tests as modules, and random numbers that no other test affects."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def no_seed_of_tensorflow() -> None:
    """A seed that another test has set would make shuffles the same in all workers, as it does in a run."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.random.set_seed(None)


@pytest.fixture
def load_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Provide a function that imports a program, in the folder of which the test runs."""
    monkeypatch.chdir(tmp_path)
    names = []

    def load_program(source: str) -> ModuleType:
        name = f"program_{next(_NUMBERS)}"
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield load_program
    for name in names:
        del sys.modules[name]
