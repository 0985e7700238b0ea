"""`make release`, and the version of the toolkit in the files that it writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from cs_runtime.exits import error_report
from cs_runtime.run_files import fabric_json, performance_json
from cs_toolkit import __version__
from cs_toolkit.errors import ToolkitError
from cs_toolkit.fabric import load_fabric

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("changelog", "problem"),
    [
        ("## 1.2.0 - 2026-12-01\n\n## 1.1.0 - 2026-11-01\n", None),
        ("## Unreleased\n\n## 1.2.0 - 2026-12-01\n", "newer than 1.2.0"),
        ("## 1.1.0 - 2026-11-01\n", "got '1.1.0 - 2026-11-01', expected '1.2.0 - YYYY-MM-DD'"),
        ("## 1.2.0\n", "got '1.2.0', expected"),
        ("# Changelog\n", "got none, expected"),
    ],
)
def test_a_release_is_described_in_the_changelog(
    release: ModuleType, changelog: str, problem: str | None
) -> None:
    found = release.find_problem(changelog, "1.2.0")
    assert found is None if problem is None else problem in found


def test_files_of_a_run_have_the_version_of_the_toolkit() -> None:
    fabric = load_fabric("cs2")
    performance = performance_json(
        fabric=fabric,
        total_samples=1,
        total_time_s=1.0,
        estimates=None,
        compile_time_s=None,
        programming_time_s=None,
    )
    files = (performance, fabric_json(fabric, None, None), error_report(ToolkitError("a message")))
    assert [file["toolkit_version"] for file in files] == [__version__] * 3
