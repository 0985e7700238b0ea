"""The parameters of a program as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cs_runtime.params import plain, write_params


def test_params_keep_what_json_can_hold(tmp_path: Path) -> None:
    params: dict[str, Any] = {
        "rate": np.float32(0.5),
        "sizes": (np.int64(3), 4),
        "nested": {"function": print, "path": Path("a/b"), "on": True, "none": None},
    }
    expected = {
        "rate": 0.5,
        "sizes": [3, 4],
        "nested": {"path": "a/b", "on": True, "none": None},
    }
    assert plain(params) == expected
    write_params(tmp_path / "new", params)
    assert yaml.safe_load((tmp_path / "new" / "params.yaml").read_text()) == expected
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["params.yaml"]
