"""Lets the tests import what they share, and keeps random numbers of one from deciding about another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_seed_of_tensorflow() -> None:
    """A seed that another test has set would make shuffles the same in all workers, as it does in a run."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.random.set_seed(None)
