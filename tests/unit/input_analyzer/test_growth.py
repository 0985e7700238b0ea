"""Memory that rises for as long as it is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from input_analyzer.analysis import Measurement
from input_analyzer.measure.growth import growth_bytes_per_s
from input_analyzer.notes import growth_notes
from input_analyzer.recommend import Limits

MIB = 1 << 20


@pytest.mark.parametrize(
    ("mib_per_s", "until_s", "found"),
    [(100, 4.0, 100), (100, 2.0, 0), (0, 4.0, 0), (2, 4.0, 0), (-50, 4.0, 0)],
)
def test_what_rises_to_the_end_is_told_from_buffers_that_fill(
    mib_per_s: int, until_s: float, found: int
) -> None:
    levels = [(10 + t / 10, int((500 + mib_per_s * min(t / 10, until_s)) * MIB)) for t in range(-20, 60)]
    assert growth_bytes_per_s(levels, 10.0, 14.0) == pytest.approx(found * MIB, rel=0.1)
    assert growth_bytes_per_s(levels[:22], 10.0, 14.0) == 0, "nothing was seen of its end"


def test_a_note_tells_when_the_node_would_be_full() -> None:
    growing = Measurement(1, 1, 10.0, 9.0, 11.0, memory_growth_bytes_per_s=100.0 * MIB)
    limits = Limits(1, 2, 24 << 30, 1 << 30, (1,))
    (note,) = growth_notes([growing, growing], limits)
    assert "rose by 100 MiB a second" in note
    assert "would fill that of the node in about 4 min" in note
    # A cache that was full in a later measurement, for instance.
    assert not growth_notes([growing, replace(growing, memory_growth_bytes_per_s=0.0)], limits)
