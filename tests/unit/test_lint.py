"""The checks of `scripts/lint.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "lint.py"


@pytest.fixture
def lint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lint", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("last", "circle"), [("", False), ("def f():\n    from ring import one\n", True)])
def test_a_circle_is_found_also_of_lazy_imports(
    lint: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, circle: bool
) -> None:
    package = tmp_path / "ring"
    package.mkdir()
    for name, text in {"__init__": "", "one": "from ring.two import x\n", "two": "x = 1\n" + last}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)  # the cache of grimp
    found = lint.find_import_circle(["ring"])
    assert bool(found) is circle
    assert not found or {"ring.one", "ring.two"} == set(found)


def test_a_path_of_this_machine_is_found(lint: ModuleType) -> None:
    here = Path(__file__)
    lines = here.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.startswith("SEEN"))
    assert lint.find_machine_paths([here], ["/srv/someone", "/"]) == [
        f"tests/unit/test_lint.py:{number}: /srv/someone"
    ]


SEEN = "/srv/someone/checkout"
