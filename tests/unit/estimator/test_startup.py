"""Imports of TensorFlow and of the estimator, and the end of a program."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

import estimator
from cs_runtime.terminal import PACKAGES, configure_logging
from estimator import report_errors
from estimator.errors import CallError

_LATER = """
import inspect, os, random, sys
from estimator import import_tensorflow
class Loud:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            os.write(2, b"somebody else\\n")
sys.meta_path.insert(0, Loud())
import_tensorflow()
os.write(2, b"afterwards\\n")
import tensorflow as tf
inspect.getmodule(sys._getframe())  # asks all modules for their files
print([name for name in ("jax", "keras", "tf_keras", "sklearn") if name in sys.modules])
print([lite.TFLiteConverter.__module__ for lite in (tf.lite, tf.compat.v1.lite, tf.compat.v2.lite)])
print("jax" in sys.modules, "TFLiteConverter" in dir(tf.lite), hasattr(tf.lite, "nothing"))
import numpy as np
random.seed(5)
np.random.seed(5)
print(tf.keras.layers.Dense.__module__)
print(random.random() == random.Random(5).random(), np.random.rand() == np.random.RandomState(5).rand())
import tensorflow.lite.python.lite, tensorflow.keras
print(tf.lite.TFLiteConverter.__name__, tensorflow.keras.layers.Dense is tf.keras.layers.Dense)
"""

_WRAPPERS = """
import keras
print("sklearn" in sys.modules)
for keras_of in (tf.keras, keras):
    print(keras_of.wrappers.SKLearnClassifier.__name__)
print("sklearn" in sys.modules)
"""


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)


@pytest.mark.parametrize(
    ("legacy", "keras", "script", "wrappers"),
    [
        ("0", "keras", _LATER + _WRAPPERS, ["False", *["SKLearnClassifier"] * 2, "True"]),
        ("1", "tf_keras", _LATER, []),
    ],
)
def test_tensorflow_comes_quietly_and_what_few_programs_use_when_it_is_used(
    legacy: str, keras: str, script: str, wrappers: list[str]
) -> None:
    """The import writes nothing itself, and keeps what others write meanwhile."""
    done = run(script, TF_USE_LEGACY_KERAS=legacy)
    assert done.stderr == "somebody else\nafterwards\n"
    assert done.stdout.splitlines() == [
        "[]",
        str(["tensorflow.lite.python.lite"] * 3),
        "True True False",
        f"{keras}.src.layers.core.dense",
        "True True",
        "TFLiteConverterV2 True",
        *wrappers,
    ]


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


def test_the_last_line_of_a_tensorflow_error_is_its_message(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_lines_of_tensorflow_appear_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    own, file = logging.StreamHandler(sys.stderr), logging.FileHandler(tmp_path / "log")
    tensorflow = logging.getLogger("tensorflow")
    monkeypatch.setattr(tensorflow, "handlers", [own, file])  # as a use before set_up leaves them
    monkeypatch.setattr(tensorflow, "propagate", True)
    levels = {name: logging.getLogger(name).level for name in ("", "estimator", *PACKAGES)}
    try:
        configure_logging("estimator")
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


def test_workers_load_no_compiler() -> None:
    """Everything that a worker calls is imported without what only a chief needs and takes long to import."""
    program = (
        "import cs_runtime.worker, estimator.errors, estimator.cs.program, estimator.cs.run, sys\n"
        "import estimator.cs.keras_program\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"cs_runtime", "cs_stream", "cs_system"} <= loaded
    assert not {"cgc", "pydantic", "xdsl"} & loaded
