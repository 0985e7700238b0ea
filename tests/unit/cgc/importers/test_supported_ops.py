"""The page of operations that can be compiled, and the tables that it is made of."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_page_has_what_the_tables_have() -> None:
    spec = spec_from_file_location("supported_ops", ROOT / "scripts" / "supported_ops.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.page()
    assert "`MatMul`" in page
    assert "`native_layer_norm`" in page
    advice = "the page is older than the importers' tables: .venv/bin/python scripts/supported_ops.py"
    assert script.PAGE.read_text() == page, advice
