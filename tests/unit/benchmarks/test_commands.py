"""Times of whole commands and their parts."""

from __future__ import annotations

import sys

import pytest

from benchmarks.commands import END, run

_SCRIPT = """
import sys, time
print("first", file=sys.stderr)
sum(range(10**6))
time.sleep(0.3)
print("second", flush=True)
time.sleep(0.1)
sys.exit({code})
"""


def _command(code: int = 0) -> list[str]:
    return [sys.executable, "-c", _SCRIPT.format(code=code)]


def test_parts_end_with_their_lines() -> None:
    measured = run(_command(), {"start": "first", "middle": "sec"})
    assert list(measured.parts) == ["start", "middle", END]
    assert measured.parts["middle"] > 0.29
    assert measured.parts[END] > 0.09
    assert measured.seconds == pytest.approx(sum(measured.parts.values()))
    # A sleeping process takes none.
    assert 0 < measured.cpu_s < measured.seconds


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [(3, "second", "ended with exit code 3$"), (0, "third", "exit code 0 and without a line 'third'$")],
)
def test_a_run_that_fails_or_prints_something_else_is_no_measurement(
    code: int, line: str, message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        run(_command(code), {"start": "first", "middle": line})
