"""The start of a program that uses the toolkit."""

from __future__ import annotations

import subprocess
import sys


def test_importing_tensorflow_writes_nothing_but_what_others_write() -> None:
    script = """
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
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == "True\n"
    assert done.stderr == "somebody else\nafterwards\n"
