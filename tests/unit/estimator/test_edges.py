"""The edges of the package: lazy imports, exit codes, parameter files, logging."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

import estimator
from cs_runtime.progress import Progress
from cs_system.client import StepOutputs
from estimator import report_errors
from estimator.errors import CallError
from estimator.files import plain, write_params
from estimator.logs import PACKAGES, set_up


def test_import_is_light_and_names_resolve() -> None:
    script = (
        "import sys, estimator; estimator.CSRunConfig; estimator.EstimatorSpec; estimator.CerebrasEstimator; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
    for name in set(estimator.__all__) - {"CS_AUTOTUNE"}:
        assert getattr(estimator, name).__name__ == name
    assert tf.data.AUTOTUNE == estimator.CS_AUTOTUNE
    with pytest.raises(AttributeError, match="no attribute 'Estimator'"):
        _ = estimator.Estimator


def test_a_run_on_this_cpu_does_not_load_what_talks_to_a_system() -> None:
    script = "import sys, estimator.cpu; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


class _ExpectedError(Exception):
    exit_code = 1


@pytest.mark.parametrize(("error", "code"), [(_ExpectedError("disk full"), 1), (CallError("bad call"), 2)])
def test_expected_errors_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    with pytest.raises(SystemExit) as caught, report_errors(tmp_path):
        raise error
    assert caught.value.code == code
    assert capsys.readouterr().err == f"error: {error}\n"
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_program_shows_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, report_errors(tmp_path):
        raise ZeroDivisionError("by zero")
    assert caught.value.code == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "ZeroDivisionError: by zero" in shown
    assert not list(tmp_path.iterdir())


def test_a_bug_of_the_toolkit_leaves_a_crash_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @report_errors(tmp_path / "crashes")
    def main() -> None:
        Progress(0, 1, None, tmp_path).add(StepOutputs(0, 1, {}, 1))

    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 3
    [path] = (tmp_path / "crashes").iterdir()
    assert "KeyError: 'output_loss'" in path.read_text()
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert str(path) in shown


def test_the_last_line_of_a_tensorflow_error_says_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    with tf.Graph().as_default() as graph:
        files = tf.data.Dataset.from_tensors("no such file").map(tf.io.read_file)
        element = tf.compat.v1.data.make_one_shot_iterator(files).get_next()
    session = tf.compat.v1.Session(graph=graph)
    with session, pytest.raises(SystemExit) as caught, report_errors():
        session.run(element)
    assert caught.value.code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: NotFoundError: ")
    assert "no such file; No such file or directory" in last


def test_ctrl_c_exits_with_130() -> None:
    with pytest.raises(SystemExit) as caught, report_errors():
        raise KeyboardInterrupt
    assert caught.value.code == 130


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


def test_logging_of_the_program_is_left_alone() -> None:
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in PACKAGES}
    handlers = list(root.handlers)
    assert handlers, "pytest has handlers of its own"
    set_up()
    assert root.handlers == handlers
    assert {name: logging.getLogger(name).level for name in PACKAGES} == levels


def test_lines_of_tensorflow_are_there_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    own, file = logging.StreamHandler(sys.stderr), logging.FileHandler(tmp_path / "log")
    tensorflow = logging.getLogger("tensorflow")
    monkeypatch.setattr(tensorflow, "handlers", [own, file])  # as a use before set_up leaves them
    monkeypatch.setattr(tensorflow, "propagate", True)
    levels = {name: logging.getLogger(name).level for name in ("", *PACKAGES)}
    try:
        set_up()
        tf.compat.v1.logging.warning("look here")
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    assert capsys.readouterr().err.count("look here") == 1
    file.close()
    assert (tmp_path / "log").read_text().count("look here") == 1


def test_parameters_that_cannot_be_copied_are_named() -> None:
    params = {"model": {"depth": 2}, "train_input": [{"files": iter(())}, {"lock": threading.Lock()}]}
    with pytest.raises(CallError, match=r"params\['train_input'\]\[1\]\['lock'\] cannot be copied \(lock: "):
        estimator.CerebrasEstimator(lambda features, params: None, params=params)
