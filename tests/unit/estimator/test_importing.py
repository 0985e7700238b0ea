"""The start of a program that uses the toolkit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import os, sys
from estimator import import_tensorflow
class Loud:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            os.write(2, b"somebody else\\n")
sys.meta_path.insert(0, Loud())
import_tensorflow()
print("tensorflow" in sys.modules)
os.write(2, b"afterwards\\n")
import tensorflow as tf, keras
print("sklearn" in sys.modules)
for keras_of in (tf.keras, keras):
    print(keras_of.wrappers.SKLearnClassifier.__name__)
print("sklearn" in sys.modules)
"""

_LATER = """
import inspect, sys
from estimator import import_tensorflow
import_tensorflow()
import tensorflow as tf
inspect.getmodule(sys._getframe())  # asks all modules for their files
print([name for name in ("jax", "keras", "tf_keras", "sklearn") if name in sys.modules])
print([lite.TFLiteConverter.__module__ for lite in (tf.lite, tf.compat.v1.lite, tf.compat.v2.lite)])
print("jax" in sys.modules, "TFLiteConverter" in dir(tf.lite), hasattr(tf.lite, "nothing"))
print(tf.keras.layers.Dense.__module__)
import tensorflow.lite.python.lite, tensorflow.keras
print(tf.lite.TFLiteConverter.__name__, tensorflow.keras.layers.Dense is tf.keras.layers.Dense)
"""


def test_importing_tensorflow_is_quiet_and_leaves_scikit_learn_for_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=100, check=True
    )
    before, *names, after = done.stdout.splitlines()[1:]
    assert done.stdout.startswith("True\n")
    assert (before, names, after) == ("False", ["SKLearnClassifier"] * 2, "True")
    assert done.stderr == "somebody else\nafterwards\n"


@pytest.mark.parametrize(("legacy", "keras"), [("0", "keras"), ("1", "tf_keras")])
def test_keras_and_tensorflow_lite_come_when_they_are_used(legacy: str, keras: str) -> None:
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": legacy}
    command = [sys.executable, "-c", _LATER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.splitlines() == [
        "[]",
        str(["tensorflow.lite.python.lite"] * 3),
        "True True False",
        f"{keras}.src.layers.core.dense",
        "TFLiteConverterV2 True",
    ]
