"""Helpers of run scripts."""

from __future__ import annotations


def prep_orchestrator() -> None:
    """Nothing to prepare: the launchers start all tasks."""
