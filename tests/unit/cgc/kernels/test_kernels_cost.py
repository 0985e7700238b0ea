"""Cost functions against figures of published compile reports (DABench-LLM, arXiv 2601.19904)."""

from __future__ import annotations

import numpy as np
import pytest

from cgc.errors import KernelGraphError
from cgc.kernels import Kernel
from cgc.kernels.configurations import Configuration, ceil_div, useful_splits
from cgc.kernels.families import FAMILIES, configurations

LAYER = {
    "rows": 1,
    "inputs": 768,
    "outputs": 3072,
    "passes": 3,
    "element_bytes": 2,
    "resident_bytes": 768 * 3072 * 10,
    "stash_bytes": 0,
    "epilogue_millicycles": 0,
    "step_millicycles": 0,
    "reload": 0,
    "batch": 32,
}
LOOP = {
    "rows": 1,
    "row_elements": 768,
    "starts": 2,
    "reductions": 0,
    "work_millicycles": 768 * 8000,
    "step_millicycles": 0,
    "streamed_elements": 768,
    "element_bytes": 2,
    "resident_bytes": 0,
    "stash_bytes": 0,
    "batch": 32,
}

# inputs, outputs, core a, core b, compute and transmission cycles per row
FULLY_CONNECTED = [
    (3072, 768, 128, 24, 904, 350),
    (768, 3072, 24, 128, 912, 350),
    (3072, 768, 64, 48, 932, 366),
    (768, 3072, 39, 77, 937, 369),
    (3072, 768, 86, 35, 961, 362),
    (256, 36550, 64, 398, 563, 251),
    (256, 1024, 13, 52, 553, 195),
    (1024, 256, 43, 16, 528, 190),
]


def layer(**changes: int) -> list[Configuration]:
    found = configurations(Kernel("fc", "fully_connected", {**LAYER, **changes}))
    return [found[index] for index in range(len(found))]


@pytest.mark.parametrize(("inputs", "outputs", "a", "b", "compute", "transmission"), FULLY_CONNECTED)
def test_fully_connected_kernels_take_the_published_cycles(
    inputs: int, outputs: int, a: int, b: int, compute: int, transmission: int
) -> None:
    shapes = layer(inputs=inputs, outputs=outputs)
    # Without an epilogue two lines follow the core: outer = (a + 2 + 1) x (b + 3).
    (found,) = [shape for shape in shapes if (shape.width, shape.height) == (a + 3, b + 3)]
    assert found.compute_cycles == pytest.approx(compute, rel=0.13)
    assert found.transmission_cycles == pytest.approx(transmission, rel=0.02)


def test_most_published_layers_are_predicted_within_four_percent() -> None:
    errors = []
    for inputs, outputs, a, b, compute, _ in FULLY_CONNECTED:
        shapes = layer(inputs=inputs, outputs=outputs)
        (found,) = [shape for shape in shapes if (shape.width, shape.height) == (a + 3, b + 3)]
        errors.append(abs(found.compute_cycles / compute - 1))
    assert np.median(errors) < 0.02
    assert sorted(errors)[-2] < 0.04


def test_the_lines_after_a_core_grow_with_the_epilogue() -> None:
    plain = {(shape.height, shape.compute_cycles): shape.width for shape in layer()}
    busy = layer(epilogue_millicycles=3072 * 100_000)
    wider = [
        shape.width - plain[shape.height, shape.compute_cycles]
        for shape in busy
        if (shape.height, shape.compute_cycles) in plain
    ]
    assert max(wider) == 8
    assert min(wider) >= 0


def test_forward_only_costs_a_third_of_training() -> None:
    train, infer = layer(), layer(passes=1)
    for both, forward in zip(train, infer, strict=True):
        assert forward.compute_cycles == pytest.approx(both.compute_cycles / 3, abs=1)


def test_a_larger_core_is_never_slower_and_holds_less_per_element() -> None:
    by_cycles = sorted(layer(), key=lambda shape: shape.width * shape.height)
    smallest, largest = by_cycles[0], by_cycles[-1]
    assert largest.compute_cycles < smallest.compute_cycles
    assert largest.memory_per_pe_bytes < smallest.memory_per_pe_bytes
    # One element holds the whole layer: weights, gradient and state.
    assert smallest.memory_per_pe_bytes > 768 * 3072 * 10


# Reductions, cycles of work per element by the coefficients, published (row elements, PEs, cycles per row).
PUBLISHED = {
    "dropout": (0, 109, [(256, 78, 518)]),
    "gelu": (
        0,
        222,
        [
            (3072, 912, 945),
            (3072, 1036, 945),
            (3072, 1032, 945),
            (3072, 1190, 945),
            (3072, 1001, 883),
            (3072, 1053, 883),
            (3072, 1133, 883),
            (3072, 1536, 852),
        ],
    ),
    "loss": (2, 76, [(36550, 9650, 563), (50257, 6318, 871)]),
    "add": (0, 8, [(768, 12, 532), (768, 36, 296), (256, 8, 276)]),
    "layer_norm": (
        4,
        18.4,
        [(256, 48, 551), (256, 66, 472), (256, 96, 395), (256, 192, 335), (768, 66, 955), (768, 768, 465)],
    ),
}


def signed_errors(family: str) -> list[float]:
    sums, work, shapes = PUBLISHED[family]
    errors = []
    for elements, pes, published in shapes:
        sizes = {
            "row_elements": elements,
            "reductions": sums,
            "work_millicycles": round(1000 * work * elements),
        }
        found = configurations(Kernel("k", "elementwise", {**LOOP, **sizes}))
        nearest = found[int(np.argmin(np.abs(found.area - pes)))]
        errors.append(nearest.compute_cycles / published - 1)
    return errors


@pytest.mark.parametrize(
    ("family", "largest"), [("dropout", 0.05), ("gelu", 0.15), ("loss", 0.15), ("add", 0.2)]
)
def test_other_kernels_take_about_the_published_cycles(family: str, largest: float) -> None:
    assert max(map(abs, signed_errors(family))) < largest


def test_layer_norm_is_predicted_too_fast_by_at_most_half() -> None:
    """A known weakness: normalization has no kernel of its own yet, its ops are costed one by one."""
    errors = signed_errors("layer_norm")
    assert -0.5 < min(errors) < -0.2
    assert max(errors) < 0.05


def test_lanes_share_a_stream() -> None:
    found = configurations(Kernel("add", "elementwise", LOOP))
    four = next(found[index] for index in range(len(found)) if found.height[index] == 4)
    assert four.transmission_cycles == 768 / 4


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 500, 784, 50257])
def test_useful_splits_have_every_largest_part_once(size: int) -> None:
    splits = useful_splits(size)
    parts = ceil_div(size, splits)
    assert len(set(parts.tolist())) == len(parts)
    assert set(parts.tolist()) == {-(-size // count) for count in range(1, size + 1)}
    assert all(
        count == 1 or -(-size // (count - 1)) > part for count, part in zip(splits, parts, strict=True)
    )


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Kernel("k", "magic", {}), "kernel k: family is 'magic', expected one of fully_connected"),
        (Kernel("k", "elementwise", {"rows": 1}), "parameters batch, element_bytes"),
        (Kernel("k", "elementwise", {**LOOP, "rows": 0}), "parameter rows is 0, expected a positive size"),
        (Kernel("k", "elementwise", {**LOOP, "stash_bytes": -1}), "parameter stash_bytes is -1"),
    ],
)
def test_kernels_without_usable_sizes_are_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(KernelGraphError, match=message):
        configurations(kernel)


def test_every_family_says_what_it_does() -> None:
    assert all(family.doc for family in FAMILIES.values())
