"""What a first epoch with cold files is, from what a copy had delivered and read by and by."""

from __future__ import annotations

import pytest

from input_analyzer.measure.first_epoch import FirstEpoch, Look, of_cold_files, of_stretch

BEGIN = Look(0, 0.0, 5000)


def looks(*rows: tuple[float, int | None]) -> list[Look]:
    """A look every 0.2 s: samples, bytes read since the begin."""
    return [BEGIN] + [
        Look(samples, 0.2 * number, None if read is None else 5000 + read)
        for number, (samples, read) in enumerate(rows, 1)
    ]


def test_while_files_are_read_all_of_it_is_the_first_epoch() -> None:
    found = of_cold_files(looks(*((100 * n, 4000 * n * 100) for n in range(1, 11))))
    assert found == FirstEpoch(pytest.approx(500), pytest.approx(4000), over=False)


def test_it_is_over_when_nothing_more_is_read() -> None:
    slow = [(100 * n, 4000 * 100 * n) for n in range(1, 6)]
    fast = [(500 + 1000 * n, 4000 * 500 + n) for n in range(1, 11)]
    found = of_cold_files(looks(*slow, *fast))
    assert found == FirstEpoch(pytest.approx(500), pytest.approx(4000), over=True)


def test_where_nobody_can_tell_it_is_all_that_was_measured() -> None:
    found = of_cold_files(looks(*((100 * n, None) for n in range(1, 11))))
    assert found == FirstEpoch(pytest.approx(500), None, over=False)
    assert of_cold_files(looks(*((100 * n, 0) for n in range(1, 11)))) == FirstEpoch(pytest.approx(500), 0.0)


def test_what_was_read_before_the_first_samples_has_no_rate() -> None:
    found = of_cold_files(looks((0, 4 << 20), (0, 9 << 20), *((1000 * n, 9 << 20) for n in range(1, 11))))
    assert found == FirstEpoch(None, None, over=True)
    assert of_cold_files(looks((0, 4 << 20), (0, 9 << 20))) == FirstEpoch()


def test_a_short_one_has_bytes_and_no_rate() -> None:
    assert of_stretch(BEGIN, Look(10, 0.1, None), Look(50, 0.3, 6000)) == FirstEpoch(None, 20.0)
