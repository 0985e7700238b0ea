from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_toolkit.figures import format_percent, format_rate, format_table_rate, format_whole_percent


@pytest.mark.parametrize(
    ("percent", "text"),
    [
        (0, "0 %"),
        (100, "100 %"),
        (0.0003, "< 0.01 %"),
        (0.04, "0.04 %"),
        (1.1548, "1.15 %"),
        (9.996, "10.0 %"),
        (68.17, "68.2 %"),
        (99.94, "99.9 %"),
        (99.96, "> 99.9 %"),
        (250.0, "250.0 %"),
        (-3.2, "-3.20 %"),
    ],
)
def test_shares(percent: float, text: str) -> None:
    assert format_percent(percent) == text


def test_shares_of_a_table_and_of_a_status_line() -> None:
    assert format_percent(0.004, 2, "%") == "< 0.01%"
    assert format_percent(99.996, 2, "%") == "> 99.99%"
    assert format_percent(0.4, 0, "%") == "< 1%"
    assert format_percent(99.7, 0, "%") == "> 99%"
    assert format_percent(55.5, 0, "%") == "56%"


@pytest.mark.parametrize(
    ("percent", "text"),
    [
        (0, "0%"),
        (100, "100%"),
        (1.15, "1%"),
        (0.04, "0.04%"),
        (0.000325, "0.0003%"),
        (99.96, "99.96%"),
        (0.5, "0.5%"),
        (99.4, "99%"),
        (78.06, "78%"),
    ],
)
def test_whole_percentages(percent: float, text: str) -> None:
    assert format_whole_percent(percent) == text


@given(st.floats(0, 100))
def test_no_share_is_shown_as_nothing_or_all_unless_it_is(percent: float) -> None:
    for text in (format_percent(percent), format_percent(percent, 0), format_whole_percent(percent)):
        number = float(re.sub("[^0-9.]", "", text))
        assert ("<" in text or number > 0) == (percent > 0)
        assert (">" in text or number < 100) == (percent < 100)
    assert abs(float(format_whole_percent(percent)[:-1]) - percent) <= 0.5


@pytest.mark.parametrize(
    ("rate", "text", "cell"),
    [
        (0, "0", "0.0"),
        (1270553.06, "1,270,553", "1270553.1"),
        (999.97, "1,000", "1000.0"),
        (37.148, "37.15", "37.1"),
        (0.0432, "0.04320", "0.04320"),
        (1.2345e-5, "0.00001234", "0.00001234"),
    ],
)
def test_rates(rate: float, text: str, cell: str) -> None:
    assert format_rate(rate) == text
    assert format_table_rate(rate) == cell
