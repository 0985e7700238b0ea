"""torch DataLoaders that fail, hang or die in their worker processes: one message, the right exit code."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.processes import wait_until

from .analyses import ANALYZER, analysis_of, inside

HEAD = """
import os, sys, time

import torch
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        self.look_at(index)
        return torch.full((self.width(index),), float(index))

    def look_at(self, index):
        pass

    def width(self, index):
        return 4
"""


def analyze(tmp_path: Path, source: str, *flags: str) -> tuple[int, str]:
    """Exit code and stderr of an analysis of the function `train_input`."""
    (tmp_path / "data.py").write_text(HEAD + source, encoding="utf-8")
    return analysis_of(tmp_path, *flags, "data.py:train_input")


def test_an_error_in_a_worker_process_shows_only_the_users_traceback(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
class Broken(Records):
    def look_at(self, index):
        if index > 60:
            raise ValueError("no such column: age")

def train_input():
    return DataLoader(Broken(), batch_size=8, num_workers=2)
""",
    )
    assert code == 1
    assert "the input function raised ValueError on " in text
    assert 'in look_at\n    raise ValueError("no such column: age")' in text
    assert text.rstrip().endswith("ValueError: no such column: age")
    assert "site-packages" not in text
    assert "input_analyzer" not in text.replace("cs_input_analyzer", "")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), 9)", "is killed by signal: Killed"),
        ("sys.exit(7)", "exited unexpectedly"),
        ("os.kill(os.getpid(), 11)", "is killed by signal: Segmentation fault"),
    ],
)
def test_a_worker_process_that_ends(tmp_path: Path, end: str, said: str) -> None:
    code, text = analyze(
        tmp_path,
        """
class Ending(Records):
    def look_at(self, index):
        if index > 60:
            END

def train_input():
    return DataLoader(Ending(), batch_size=8, num_workers=2)
""".replace("END", end),
    )
    assert code == 1
    # torch does not always see by what.
    queue_ended = "means that a worker process has exited by itself"
    assert re.search(rf"DataLoader worker \(pid.*({said}|exited unexpectedly)|{queue_ended}", text)


def test_a_hanging_worker_process_is_shown_with_the_line_that_it_hangs_at(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
class Hanging(Records):
    def look_at(self, index):
        if index > 60:
            time.sleep(600)

def train_input():
    return DataLoader(Hanging(), batch_size=8, num_workers=2)
""",
        "--time-limit=5",
    )
    assert code == 1
    assert "the input function hangs" in text
    assert re.search(r'File ".*data\.py", line \d+, in look_at\n    time\.sleep\(600\)', text)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("def train_input():\n    return iter(DataLoader(Records()))", 2, "expected a tf.data.Dataset or a"),
        ("def train_input():\n    return Records()", 2, "the input function returned Records"),
        (
            "def train_input():\n    return DataLoader(torch.arange(12), batch_size=4)",
            1,
            "the input ended after 3 batches (12 samples)",
        ),
        (
            "class Varying(Records):\n    def width(self, index):\n        return 4 + index // 8 % 3\n\n"
            "def train_input():\n    return DataLoader(Varying(), batch_size=8)",
            1,
            "is float32[8, 4] in the first batch and float32[8, 5] in batch 2",
        ),
        (
            "def train_input():\n    return DataLoader(Records(), batch_size=0)",
            1,
            "batch_size should be a positive integer value",
        ),
        (
            "class Far(Records):\n    def look_at(self, index):\n        raise ConnectionError('down')\n\n"
            "def train_input():\n    return DataLoader(Far(), batch_size=8)",
            1,
            "ConnectionError: down",
        ),
        (
            "def train_input():\n"
            "    return DataLoader(Records(), batch_size=8, collate_fn=lambda x: (torch.stack(x), object()))",
            2,
            "component 'element[1]' of the input is object, expected a dense tensor of numbers; build it",
        ),
    ],
    ids=["iterator", "dataset", "short", "varying", "raises", "unconnected", "objects"],
)
def test_loaders_that_cannot_be_used(tmp_path: Path, source: str, code: int, said: str) -> None:
    found, text = analyze(tmp_path, source)
    assert found == code
    assert said in text


def test_ctrl_c_leaves_no_worker_process(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        HEAD
        + "\ndef train_input():\n"
        + "    return DataLoader(Records(), 8, num_workers=2, persistent_workers=True)\n"
    )
    with subprocess.Popen(
        [ANALYZER, "--seconds=60", "data.py:train_input"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        # The command, its guard, a program and its two workers at least.
        wait_until(lambda: len(inside(tmp_path)) >= 5)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    wait_until(lambda: not inside(tmp_path))
