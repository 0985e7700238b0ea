"""Cost functions against figures of published compile reports (DABench-LLM, arXiv 2601.19904)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published import KernelRow, kernel_rows
from cgc.errors import KernelGraphError
from cgc.kernels import Kernel, families
from cgc.kernels.assignment import Family
from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import Configuration, Configurations, ceil_div, useful_splits
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

ROW = {
    "rows": 1,
    "row_elements": 256,
    "passes": 2,
    "element_bytes": 2,
    "resident_bytes": 0,
    "stash_bytes": 0,
    "step_millicycles": 0,
    "batch": 4096,
}
ATTENTION = {
    "rows": 1,
    "keys": 1024,
    "heads": 12,
    "inputs": 768,
    "width": 768,
    "projections": 3,
    "outputs": 768,
    "passes": 3,
    "element_bytes": 2,
    "resident_bytes": 0,
    "stash_bytes": 0,
    "step_millicycles": 0,
    "batch": 32,
}

# inputs, outputs, core a, core b, compute and transmission cycles per row
FULLY_CONNECTED = [
    (3072, 768, 128, 24, 904, 350),
    (768, 3072, 32, 96, 912, 350),
    (768, 3072, 39, 77, 937, 369),
    (1024, 256, 43, 16, 544, 190),
    (1024, 256, 41, 16, 553, 195),
    (256, 1024, 29, 22, 547, 221),
]


def found_layouts(family: str, parameters: dict[str, int]) -> list[Configuration]:
    found = configurations(Kernel("k", family, parameters))
    return [found[index] for index in range(len(found))]


def layer(**changes: int) -> list[Configuration]:
    return found_layouts("fully_connected", {**LAYER, **changes})


def row_cycles(layout: Configuration) -> float:
    """Cycles of a sample of one row without what every sample takes once."""
    return layout.compute_cycles - coefficient("sample_start")


def of_size(layouts: list[Configuration], width: int, height: int) -> Configuration:
    (found,) = {layout for layout in layouts if (layout.width, layout.height) == (width, height)}
    return found


@pytest.mark.parametrize(("inputs", "outputs", "a", "b", "compute", "transmission"), FULLY_CONNECTED)
def test_fully_connected_kernels_take_the_published_cycles(
    inputs: int, outputs: int, a: int, b: int, compute: int, transmission: int
) -> None:
    # Without an epilogue two lines follow the core: outer = (a + 2 + 1) x (b + 3).
    found = of_size(layer(inputs=inputs, outputs=outputs), a + 3, b + 3)
    assert row_cycles(found) == pytest.approx(compute, rel=0.03)
    assert found.transmission_cycles == pytest.approx(transmission, rel=0.05)


@pytest.mark.parametrize(("width", "a"), [(16, 4), (256, 64), (512, 128)])
def test_vocabulary_heads_bound_the_transformers_at_563_cycles(width: int, a: int) -> None:
    """A tile of 4 x 92 in all published widths; no layout is much faster."""
    head = layer(inputs=width, outputs=36550, loss_outputs=1)
    assert row_cycles(of_size(head, a + 3, 398 + 3)) == pytest.approx(563, abs=2)
    assert min(map(row_cycles, head)) > 555


def test_the_head_of_gpt2_takes_the_published_area_and_cycles() -> None:
    """emb_fc1: 65,604 PEs at 963 cycles, an embedding table as well."""
    head = layer(inputs=768, outputs=50257, loss_outputs=1, lookup=1)
    smallest = min(layout.area for layout in head if row_cycles(layout) <= 966)
    assert smallest == pytest.approx(65_604, rel=0.05)


def test_layouts_of_fully_connected_kernels_keep_a_reserve() -> None:
    found = configurations(Kernel("fc", "fully_connected", {**LAYER, "rows": 1024}))
    fastest = found.compute_cycles == found.compute_cycles.min()
    kept = found.compute_cycles / found.cycles
    assert (found.cycles[fastest] == found.compute_cycles[fastest]).all()
    assert np.allclose(kept[~fastest], coefficient("matmul_reserve"), atol=0.002)


def test_attention_has_the_published_rectangle() -> None:
    """GPT-2: 52 x 169 PEs and 964 cycles with blocks of 24 x 96, 24 x 32, 24 x 64 and 48 x 64."""
    found = configurations(Kernel("k", "attention", ATTENTION))
    layouts = [found[index] for index in np.flatnonzero((found.width == 169) & (found.height == 52))]
    assert min(layout.compute_cycles for layout in layouts) == pytest.approx(964, rel=0.01)
    smallest = found.area[found.compute_cycles <= 964].min()
    assert smallest == pytest.approx(8788, rel=0.05)


def test_attention_of_the_transformers_is_as_large_as_published() -> None:
    sizes = {"keys": 256, "heads": 2, "inputs": 256, "width": 256, "outputs": 256}
    found = configurations(Kernel("k", "attention", {**ATTENTION, **sizes}))
    smallest = found.area[found.compute_cycles <= 563].min()
    assert smallest == pytest.approx(2249, rel=0.03)


@pytest.mark.parametrize("missing", [{"projections": 0}, {"outputs": 0}, {"projections": 0, "outputs": 0}])
def test_attention_without_projections_is_smaller(missing: dict[str, int]) -> None:
    whole = configurations(Kernel("k", "attention", ATTENTION))
    part = configurations(Kernel("k", "attention", {**ATTENTION, **missing}))
    assert part.area[part.compute_cycles <= 964].min() < whole.area[whole.compute_cycles <= 964].min()


def published(family: str) -> list[KernelRow]:
    return [row for row in kernel_rows() if row.family == family]


def test_layer_norm_takes_the_published_cycles_on_all_published_rectangles() -> None:
    for row in published("layer_norm"):
        elements = 768 if row.report == "gpt2_small" else 256
        layouts = found_layouts("layer_norm", {**ROW, "row_elements": elements})
        same = [row_cycles(layout) for layout in layouts if layout.area == row.active_pes]
        assert min(same) == pytest.approx(row.compute_cycles, rel=0.01), row


@pytest.mark.parametrize(
    ("family", "elements", "pes", "cycles", "tolerance"),
    [
        ("dropout", 256, 78, 518, 0.01),
        ("nlin", 3072, 1024, 929, 0.03),
        ("nlin", 3072, 1536, 852, 0.02),
        ("add", 768, 12, 532, 0.0),
        ("add", 256, 8, 276, 0.0),
        ("pos_encoding", 256, 24, 232, 0.01),
        ("pos_encoding", 256, 28, 199, 0.02),
        ("loss", 36550, 9625, 563, 0.01),
        ("loss", 50257, 6318, 871, 0.01),
    ],
)
def test_other_kernels_take_the_published_cycles(
    family: str, elements: int, pes: int, cycles: int, tolerance: float
) -> None:
    layouts = found_layouts(family, {**ROW, "row_elements": elements})
    once = 0.0 if family == "loss" else coefficient("sample_start")
    same = [layout.compute_cycles - once for layout in layouts if layout.area == pes]
    assert same
    assert min(same) == pytest.approx(cycles, rel=tolerance, abs=1)


def test_a_table_takes_as_many_pes_as_its_memory_needs() -> None:
    """Published: 3,537 and 3,542 PEs for 36,550 rows of 256; value, moments and 16-bit copies of each."""
    parameters = {**ROW, "resident_bytes": 16 * 36550 * 256}
    fitting = [lay for lay in found_layouts("embedding", parameters) if lay.memory_per_pe_bytes <= 49152]
    assert min(layout.area for layout in fitting) == pytest.approx(3540, rel=0.01)


def test_wide_elements_cost_twice_as_much_but_random_numbers_do_not() -> None:
    for family, factor in (("layer_norm", 2.0), ("dropout", 1.0)):
        narrow = found_layouts(family, {**ROW, "row_elements": 4096})
        wide = found_layouts(family, {**ROW, "row_elements": 4096, "element_bytes": 4})
        one = max(layout.compute_cycles for layout in narrow), max(lay.compute_cycles for lay in wide)
        assert one[1] / one[0] == pytest.approx(factor, rel=0.01)


def test_copies_of_a_core_share_the_rows_of_an_image() -> None:
    image = {**LAYER, "rows": 4096, "rows_per_start": 64, "inputs": 288, "outputs": 32}
    alone = layer(**image)
    shared = layer(**image, copies=64)
    fastest, fastest_shared = (min(map(row_cycles, found)) for found in (alone, shared))
    assert fastest / fastest_shared == pytest.approx(64, rel=0.05)
    for layout in shared:
        assert layout.busy_pe_cycles <= 1.1 * layout.area * layout.compute_cycles


def test_the_lines_after_a_core_grow_with_the_epilogue() -> None:
    busy = layer(epilogue_millicycles=3072 * 100_000)
    wider = [shape.width - plain.width for plain, shape in zip(layer(), busy, strict=True)]
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
        (Kernel("k", "magic", {}), "kernel k: family is 'magic', expected one of attention, fully_connected"),
        (Kernel("k", "elementwise", {"rows": 1}), "parameters batch, element_bytes"),
        (Kernel("k", "elementwise", {**LOOP, "rows": 0}), "parameter rows is 0, expected a positive size"),
        (Kernel("k", "elementwise", {**LOOP, "stash_bytes": -1}), "parameter stash_bytes is -1"),
    ],
)
def test_kernels_without_usable_sizes_are_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(KernelGraphError, match=message):
        configurations(kernel)


def test_every_family_has_a_description() -> None:
    assert all(family.doc for family in FAMILIES.values())


def test_every_family_of_the_folder_is_in_the_order() -> None:
    """The record of a family has its name in capitals and is next to its rule; the order is complete."""
    folder = Path(families.__file__).parent
    found = {}
    for path in folder.glob("[!_]*.py"):
        module = import_module(f"{families.__name__}.{path.stem}")
        for name, value in vars(module).items():
            if isinstance(value, Family) and name == value.name.upper():
                found[value.name] = value
                assert value.match is None or value.match.__module__.startswith(families.__name__)
    assert found == FAMILIES
    assert len(FAMILIES) == sum(isinstance(entry, Family) for entry in families.ORDER)


IMAGE = {"rows_per_start": 256, "copies": 256, "lines": 256, "line_elements": 256 * 32}


def convolution(**changes: int) -> Configurations:
    """The convolution has 3 x 3 and 32 channels on images of 256 x 256, as in the published U-Net."""
    sizes = {"rows": 256 * 256, "inputs": 9 * 32, "outputs": 32, **IMAGE}
    return configurations(Kernel("k", "convolution", {**LAYER, **sizes, "resident_bytes": 0, **changes}))


def test_a_convolution_multiplies_four_times_a_cycle_along_the_lines() -> None:
    """Published: 49,168 cycles of the slowest kernel; ours starts the product on each line."""
    found = convolution()
    along_64_copies = found.compute_cycles[found.compute_cycles >= 49_152].min()
    assert along_64_copies == pytest.approx(49_168, rel=0.01)
    seven = convolution(rows=7 * 7, rows_per_start=7, copies=7).compute_cycles.max()
    eight = convolution(rows=8 * 8, rows_per_start=8, copies=8).compute_cycles.max()
    assert seven / eight == pytest.approx(7 / 8, rel=0.001)  # a line of seven takes as long as one of eight


@pytest.mark.parametrize(("family", "sizes"), [("convolution", LAYER), ("pooling", LOOP), ("add", ROW)])
def test_images_go_from_kernel_to_kernel_in_the_published_time(family: str, sizes: dict[str, int]) -> None:
    """57,728 cycles for 256 lines whatever the layout, and 49,168 to compute in: U-Net, ALCF user guides."""
    images = {**sizes, "rows": 256, "lines": 256, "line_elements": 256 * 32}
    found = configurations(Kernel("k", family, images))
    assert found.transmission_cycles.min() == 57_728
    assert found.reserve * 57_728 == pytest.approx(49_168, rel=0.001)


def test_long_rows_have_lanes_for_every_768_elements() -> None:
    """GELU of 3,072 elements in GPT-2: 267 to 286 cycles, the more the fewer PEs."""
    (cycles,) = set(
        configurations(Kernel("k", "nlin", {**ROW, "row_elements": 3072})).transmission_cycles.tolist()
    )
    assert cycles == 256
    rows = [row.transmission_cycles for row in published("nlin") if row.report == "gpt2_small"]
    assert min(rows) == pytest.approx(cycles, rel=0.05)
