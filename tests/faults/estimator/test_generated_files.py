"""Files that AutoGraph generates do not stay after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys, tempfile
import numpy as np
if sys.argv[1] == "early":
    import tensorflow
from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec

def model_fn(features, labels, mode):
    import tensorflow as tf
    tf.reduce_sum(features)
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return EstimatorSpec(mode, predictions=features)

def input_fn(mode):
    import tensorflow as tf
    def convert(x):
        if tf.reduce_sum(x) > 0:
            return x
        return 2 * x
    dataset = tf.data.Dataset.from_tensor_slices(np.ones([4, 2], np.float32)).map(convert).batch(2)
    folders = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("autograph-")]
    print(len(folders), any(os.scandir(os.path.join(tempfile.gettempdir(), folders[0]))))
    return dataset

list(CerebrasEstimator(model_fn, "model", config=CSRunConfig()).predict(input_fn))
"""


def test_a_killed_process_leaves_no_files_for_the_next(tmp_path: Path) -> None:
    script, folders = tmp_path / "run.py", tmp_path / "tmp"
    script.write_text(PROGRAM)
    folders.mkdir()

    def run(imported: str, end: str) -> int:
        ran = subprocess.run(
            [sys.executable, str(script), imported, end],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={
                **os.environ,
                "TMPDIR": str(folders),
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONUNBUFFERED": "1",
            },
            check=False,
        )
        assert ran.stdout == "1 True\n", ran.stderr
        return ran.returncode

    for imported in ("early", "late"):
        assert run(imported, "kill") == -signal.SIGKILL
        assert len(list(folders.iterdir())) == 1
    assert run("early", "end") == 0
    assert not list(folders.iterdir())
