"""Whose line an operation belongs to."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import cgc
from cs_toolkit.source_files import innermost_user_line


@dataclass(frozen=True)
class Frame:
    filename: str
    lineno: int


STDLIB = sysconfig.get_paths()["stdlib"]
OURS = str(Path(cgc.__file__).parent / "importers" / "x.py")
KERAS = "/home/me/env/lib/python3.11/site-packages/keras/src/layer.py"


def test_innermost_line_outside_libraries_wins() -> None:
    frames = [
        Frame("/home/me/run.py", 9),
        Frame(OURS, 70),
        Frame("/home/me/model.py", 41),
        Frame(f"{STDLIB}/contextlib.py", 81),
        Frame(KERAS, 5),
        Frame("<frozen importlib>", 2),
    ]
    assert innermost_user_line(frames) == "/home/me/model.py:41"


def test_no_line_where_all_frames_are_libraries() -> None:
    assert innermost_user_line([Frame(KERAS, 5), Frame(OURS, 1)]) is None
    assert innermost_user_line([]) is None


def test_a_program_next_to_our_packages_is_the_users() -> None:
    program = str(Path(cgc.__file__).parents[1] / "models" / "fc_mnist" / "model.py")
    assert innermost_user_line([Frame(program, 3), Frame(KERAS, 5)]) == f"{program}:3"
