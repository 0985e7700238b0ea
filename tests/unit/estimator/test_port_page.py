"""The program of the page on porting trains, and continues, as the page says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "port-tensorflow.md"


def test_the_program_of_the_page_is_checked_trains_and_is_evaluated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "run.py"
    program.write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    runpy.run_path(str(program), run_name="__main__")
    printed = capsys.readouterr().out
    accuracy = re.search(r"'accuracy': np\.float32\(([0-9.]+)\)", printed)
    assert accuracy is not None, printed
    assert float(accuracy[1]) > 0.9
    assert (tmp_path / "model_dir" / "model.ckpt-200.index").is_file()
    assert "fully_connected" in (tmp_path / "model_dir" / "kernels.txt").read_text()
