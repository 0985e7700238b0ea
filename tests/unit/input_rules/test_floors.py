"""What may import what: the rules lie below the front ends, the analyzer lies on top."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OURS = {folder.parent.name for folder in ROOT.glob("*/py.typed")}


def imported(package: str) -> set[str]:
    """Our packages that a package imports anywhere, also within functions."""
    found: set[str] = set()
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return (found & OURS) - {package}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("input_rules", {"cs_toolkit"}),
        ("input_analyzer", {"cgc", "csrun", "cs_toolkit", "input_rules"}),
    ],
)
def test_a_package_imports_what_lies_below_it(package: str, allowed: set[str]) -> None:
    assert imported(package) <= allowed


@pytest.mark.parametrize("package", ["estimator", "csrun", "cs_runtime", "cs_system", "cgc"])
def test_nothing_below_imports_the_analyzer(package: str) -> None:
    assert imported(package), "the package is there"
    assert "input_analyzer" not in imported(package)
