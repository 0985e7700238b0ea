"""The edges of the package: lazy imports, errors and logging of TensorFlow."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

import estimator
from cs_runtime.terminal import PACKAGES, set_up
from estimator import report_errors
from estimator.errors import CallError


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


def test_lines_of_tensorflow_are_there_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    own, file = logging.StreamHandler(sys.stderr), logging.FileHandler(tmp_path / "log")
    tensorflow = logging.getLogger("tensorflow")
    monkeypatch.setattr(tensorflow, "handlers", [own, file])  # as a use before set_up leaves them
    monkeypatch.setattr(tensorflow, "propagate", True)
    levels = {name: logging.getLogger(name).level for name in ("", "estimator", *PACKAGES)}
    try:
        set_up("estimator")
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
