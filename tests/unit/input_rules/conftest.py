"""Keep the random numbers of one test from affecting another."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def no_seed_of_tensorflow() -> None:
    """A seed that another test has set would make shuffles the same in all workers, as it does in a run."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.random.set_seed(None)
