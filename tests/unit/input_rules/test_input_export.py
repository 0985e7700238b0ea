"""An input function is passed to the starter of the process, which a front end does not know."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from input_rules.input_export import (
    ORDER_VARIABLE,
    RECEIVER_VARIABLE,
    InputProgram,
    export_input,
    export_requested,
)


def test_the_function_named_in_the_environment_takes_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    taker = ModuleType("taker")
    taker.__dict__["take"] = lambda *given: taken.append(given)
    monkeypatch.setitem(sys.modules, "taker", taker)
    monkeypatch.delenv(ORDER_VARIABLE, raising=False)
    assert not export_requested()
    monkeypatch.setenv(ORDER_VARIABLE, "order.json")
    monkeypatch.setenv(RECEIVER_VARIABLE, "taker:take")
    assert export_requested()
    program = InputProgram("tensorflow", dict, lambda shard: None, lambda shard: iter(()))
    export_input(program, compiles=True)
    assert taken == [(program, Path("order.json"), True)]
