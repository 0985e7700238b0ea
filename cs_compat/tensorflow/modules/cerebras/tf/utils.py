"""Helpers of run scripts."""

from __future__ import annotations


def prep_orchestrator() -> None:
    """Do nothing: the launchers start all tasks."""
