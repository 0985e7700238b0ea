"""The start of a program that uses the toolkit."""

from __future__ import annotations

import subprocess
import sys

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


def test_importing_tensorflow_is_quiet_and_leaves_scikit_learn_for_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=100, check=True
    )
    before, *names, after = done.stdout.splitlines()[1:]
    assert done.stdout.startswith("True\n")
    assert (before, names, after) == ("False", ["SKLearnClassifier"] * 2, "True")
    assert done.stderr == "somebody else\nafterwards\n"
