from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cgc.cirh.interface import step_interface
from cgc.cirh.text import parse_module
from cgc.lowering.interpret import export_step
from cs_toolkit.step import StepInterface
from tests.programs.steps import LINEAR


@dataclass(frozen=True)
class Program:
    """The linear step, exported."""

    executable: bytes
    interface: StepInterface

    def state(self, step: int = 0) -> dict[str, np.ndarray]:
        return {
            "state.model.w": np.zeros((4, 1), np.float32),
            "state.optimizer.lr": np.full((), 0.01, np.float32),
            "state.global_step": np.full((), step, np.int64),
        }

    def chunk(self, batches: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(seed)
        inputs = random.standard_normal((batches, 8, 4)).astype(np.float32)
        return inputs, random.integers(0, 3, (batches, 8)).astype(np.int32)


@pytest.fixture(scope="session")
def program() -> Program:
    module = parse_module(LINEAR.read_text())
    return Program(export_step(module, step_interface(module)), step_interface(module))
