from __future__ import annotations

import json

import pytest

from cs_toolkit.floorplan import MAX_KERNELS, Floorplan, FloorplanError, PlacedKernel, read_floorplan

PLAN = Floorplan(
    part="",
    width=200,
    height=100,
    kernels=(PlacedKernel("fc1", 0, 0, 50, 100, 1.0), PlacedKernel("<b>", 50, 0, 1, 1)),
    copies=((100, 0),),
    bound_by=("fc1",),
    reason="compute: products",
    samples_per_s=1.5e6,
)


def test_a_floorplan_is_read_as_it_was_written():
    assert read_floorplan(PLAN.to_json()) == PLAN


def test_a_floorplan_over_the_limits_is_left_out():
    kernels = tuple(PlacedKernel(f"k{n}", 0, 0, 1, 1) for n in range(MAX_KERNELS + 1))
    assert Floorplan("", 1, 1, kernels, (), (), "", 1.0).to_json() == ""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"size": [200, 10**9]}, "expected a whole number"),
        ({"size": [200, "100"]}, "expected a whole number"),
        ({"size": [True, 100]}, "expected a whole number"),
        ({"kernels": [["k", 0, 0, 0, 1, None]]}, "expected a whole number from 1"),
        ({"kernels": [["k", 0, 0, 1, 1, 2.0]]}, "the load of a kernel is 2.0"),
        ({"kernels": [["k", 0, 0, 1]]}, "cannot be read"),
        ({"kernels": [["k\x1b[2J", 0, 0, 1, 1, None]]}, "expected printable text"),
        ({"kernels": [["k" * 201, 0, 0, 1, 1, None]]}, "expected printable text"),
        ({"bound_by": 7}, "cannot be read"),
        ({"samples_per_s": float("nan")}, "samples_per_s is nan"),
        ({"reason": "x" * 300_000}, "expected at most"),
    ],
)
def test_a_floorplan_of_a_stranger_is_checked(changes, text):
    fields = {**json.loads(PLAN.to_json()), **changes}
    with pytest.raises(FloorplanError, match=text):
        read_floorplan(json.dumps(fields))


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "null", '{"size": [1]}'])
def test_other_texts_are_no_floorplans(text):
    with pytest.raises(FloorplanError):
        read_floorplan(text)
