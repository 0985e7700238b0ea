"""When a batch job is asked for its last checkpoint."""

from __future__ import annotations

import pytest

from cs_toolkit.errors import UsageError
from csrun.schedulers.slurm.submit import WARN_S, warning_time


@pytest.mark.parametrize(
    ("asked_s", "time_limit", "warn_s"),
    [
        (None, "", WARN_S),
        (None, "UNLIMITED", WARN_S),
        (None, "4:00:00", WARN_S),
        (None, "4", WARN_S),
        (None, "3", 90),
        (None, "2", 50),
        (None, "1", 0),
        (None, "0", WARN_S),
        (300.0, "1-0", 300),
        (59.9, "1", 59),
        (0.0, "1", 0),
    ],
)
def test_a_short_job_works_at_least_half_of_its_time(
    asked_s: float | None, time_limit: str, warn_s: int
) -> None:
    """Slurm may be a minute early: a job of a minute would be warned, and ended, at its start."""
    assert warning_time(asked_s, time_limit) == warn_s


def test_a_warning_at_the_start_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--warn-before=60 with --time=1: .* lower --warn-before or raise"):
        warning_time(60.0, "1")
