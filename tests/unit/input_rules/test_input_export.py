"""An input function handed to whoever has started the process, of whom a front end knows nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from input_rules.input_export import TAKER, VARIABLE, InputProgram, take_over, wanted


def test_what_the_environment_names_takes_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    taker = ModuleType("taker")
    taker.__dict__["take"] = lambda *given: taken.append(given)
    monkeypatch.setitem(sys.modules, "taker", taker)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not wanted()
    monkeypatch.setenv(VARIABLE, "order.json")
    monkeypatch.setenv(TAKER, "taker:take")
    assert wanted()
    program = InputProgram("tensorflow", dict, lambda shard: None, lambda shard: iter(()))
    take_over(program, compiles=True)
    assert taken == [(program, Path("order.json"), True)]
