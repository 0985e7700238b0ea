"""The start of a program that uses the toolkit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
