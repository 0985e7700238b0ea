from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cgc.cirh.ops import ALL_OPS

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.mlir"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_text_after_passes(path: Path, check_file: Callable[[Path], None]) -> None:
    check_file(path)


def test_every_op_has_its_text_form_on_record() -> None:
    text = (FOLDER / "cirh" / "ops.mlir").read_text(encoding="utf-8")
    on_record = {line.split(" = ")[1].split()[0] for line in text.splitlines() if "CHECK-NEXT: %" in line}
    assert on_record == {op.name for op in ALL_OPS}


def test_a_wrong_check_line_is_noticed(tmp_path: Path, check_file: Callable[[Path], None]) -> None:
    path = tmp_path / "wrong.mlir"
    path.write_text(
        "// RUN: cgc-opt %s --passes dce | filecheck %s\n"
        "builtin.module {\n}\n"
        "// CHECK: builtin.module\n"
        "// CHECK: cirh.Add\n"
    )
    with pytest.raises(AssertionError, match=r"wrong\.mlir"):
        check_file(path)
