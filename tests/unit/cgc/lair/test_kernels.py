"""Generated kernels: their loop nests, their cost on a rectangle, shared loops of groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.interface import INPUT_NAME, MODE, OUTPUT_NAME, RESOURCE_NAME
from cgc.cirh.module import verify_module
from cgc.cirh.text import parse_module, print_module
from cgc.cirh.types import tensor_type
from cgc.errors import LoweringError, ModuleSyntaxError
from cgc.kernels import Kernel, match_kernels
from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import Configurations
from cgc.kernels.families import configurations
from cgc.kernels.families.grouping import lair_text
from cgc.kernels.generated import GeneratedKernel, schedule_nests
from cgc.kernels.nest_cost import nest_configurations
from cgc.lair.dialect import LAIR_DIALECTS
from cgc.lair.lower import lower_group
from cgc.lair.nest import loop_program
from cgc.lair.passes import LairFusePass
from cgc.report import render_kernel_list
from tests.unit.cgc.lair_interpreter import run

Shape = tuple[int, ...]
Build = Callable[..., Sequence[CirhOp]]
BATCH = 16


def kernel(
    shapes: Sequence[Shape], build: Build, samples: Collection[int] = (0,), resident: Collection[int] = ()
) -> GeneratedKernel:
    block = Block(arg_types=[tensor_type(shape, "float32") for shape in shapes])
    made = build(*block.args)
    module = lower_group(made, block.args, [made[-1].results[0]])
    LairFusePass().apply(Context(), module)
    return GeneratedKernel(loop_program(module), frozenset(samples), frozenset(resident), BATCH)


def layouts(found: GeneratedKernel, stash_bytes: int = 0) -> Configurations:
    return nest_configurations(found, {"batch": BATCH, "stash_bytes": stash_bytes})


def at(configurations: Configurations, width: int, height: int) -> int:
    """The layout of one rectangle; those of copies of a line come after it."""
    index, *_ = np.flatnonzero((configurations.width == width) & (configurations.height == height))
    return int(index)


def fastest(found: GeneratedKernel) -> int:
    return int(layouts(found).compute_cycles.min())


def sines(x: SSAValue) -> list[CirhOp]:
    return [ops.SinOp(x)]


def sums(x: SSAValue) -> list[CirhOp]:
    return [ops.ReduceOp(x, "ADD", (1,))]


def scans(x: SSAValue) -> list[CirhOp]:
    return [ops.CumSumOp(x, 1)]


def test_a_copy_of_the_model_does_the_work_of_a_step_for_fewer_samples() -> None:
    update = kernel([(64, 64)], sines, (), (0,))
    samples = kernel([(BATCH, 64)], sines)
    for found, times in ((update, 4), (samples, 1)):
        ((one,), (shared,)) = (list(schedule_nests(k)) for k in (found, replace(found, replicas=4)))
        assert shared.runs == times * one.runs
        before, after = (layouts(k).busy_pe_cycles for k in (found, replace(found, replicas=4)))
        np.testing.assert_allclose(after, times * before)
    assert layouts(replace(update, replicas=4)).compute_cycles.max() > layouts(update).compute_cycles.max()


def test_the_loops_of_a_kernel_in_words() -> None:
    def build(x: SSAValue) -> list[CirhOp]:
        sine = ops.SinOp(x)
        return [
            sine,
            total := ops.ReduceOp(sine, "ADD", (1,)),
            ops.CumSumOp(total, 0),
            ops.TransposeOp(x, (1, 0)),
        ]

    assert kernel([(256, 768)], build).describe() == (
        "for i in 0..256, j in 0..768: 2 arith ops, reduce over j",
        "for i in 0..256: 1 arith op, scan over i",
        "for i in 0..768, j in 0..256: move",
    )
    assert kernel([()], lambda x: [ops.SinOp(x)], ()).describe() == ("once: 1 arith op",)
    parts = kernel([(3,)], lambda x: [ops.ConcatOp([x, x, x], 0)])
    assert parts.describe() == ("for i in 0..3: move (3 times)",)


def test_loops_that_are_alike_share_a_line() -> None:
    def build(x: SSAValue, y: SSAValue) -> list[CirhOp]:
        squares = [ops.MulOp(value, value) for value in (x, y, x, y)]
        return [op for square in squares for op in (square, ops.ReduceOp(square, "ADD", (0, 1)))]

    found = kernel([(4, 8), (6, 8)], build, ()).describe()
    assert [line for line in found if line.endswith("(2 times)")] == list(found)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("build", "family"),
    [
        (sines, "elementwise"),
        (sums, "reduction"),
        (scans, "reduction"),
        (lambda x: [ops.TransposeOp(x, (1, 0))], "data_movement"),
        (lambda x: [ops.TopKOp(x, 2)], "reduction"),
    ],
)
def test_the_loops_determine_the_family_of_a_kernel(build: Build, family: str) -> None:
    assert kernel([(BATCH, 8)], build).family == family


@pytest.mark.parametrize(
    ("shape", "build", "time", "spatial", "runs"),
    [
        ((BATCH, 24), sines, {0}, (1,), 1),
        ((BATCH * 3, 24), sines, {0}, (1,), 3),
        ((BATCH, 5, 24), sines, {0, 1}, (2,), 5),
        ((BATCH, 24), lambda x: [ops.TransposeOp(x, (1, 0))], {1}, (0,), 1),
        ((BATCH, 24), lambda x: [ops.ReduceOp(x, "ADD", (0,))], {0}, (1,), 1),
        ((BATCH, 24), lambda x: [ops.ReshapeOp(x, (BATCH, 4, 6))], {0, 1}, (2,), 4),
        ((BATCH + 1, 24), sines, set(), (1, 0), 1 / BATCH),
    ],
)
def test_samples_and_rows_run_in_time(
    shape: Shape, build: Build, time: set[int], spatial: tuple[int, ...], runs: float
) -> None:
    (nest,) = schedule_nests(kernel([shape], build))
    assert (nest.time, nest.spatial, nest.runs) == (time, spatial, runs)


def test_a_nest_without_samples_runs_once_a_step() -> None:
    (nest,) = schedule_nests(kernel([(24, 32)], sines, samples=()))
    assert (nest.time, nest.spatial, nest.runs) == (frozenset(), (1, 0), 1 / BATCH)


def test_cycles_of_an_elementwise_kernel_are_those_of_the_fullest_pe() -> None:
    found = layouts(kernel([(BATCH, 100)], sines))
    wide = coefficient("wide_element_factor")
    per_element = coefficient("transcendental") + 2 * wide * coefficient("stream")
    for width, height in ((1, 1), (3, 1), (5, 2), (4, 4)):
        fullest = -(-100 // (width * height))
        expected = np.ceil(coefficient("start") + fullest * per_element)
        assert found.compute_cycles[at(found, width, height)] == expected
    assert found.transmission_cycles[at(found, 5, 2)] == wide * 100 / 2


def test_rows_cost_a_start_each() -> None:
    one, ten = (layouts(kernel([(BATCH, rows, 100)], sines)) for rows in (1, 10))
    index = at(one, 5, 5)
    assert ten.compute_cycles[at(ten, 5, 5)] == 10 * one.compute_cycles[index]
    assert ten.memory_per_pe_bytes[at(ten, 5, 5)] == one.memory_per_pe_bytes[index]


def test_running_values_travel_from_pe_to_pe() -> None:
    plain = layouts(kernel([(BATCH, 96)], lambda x: [ops.NegOp(x)]))
    for build in (sums, scans):
        carried = layouts(kernel([(BATCH, 96)], build))
        alone, together = at(plain, 1, 1), at(plain, 4, 6)
        assert carried.compute_cycles[alone] <= plain.compute_cycles[alone]
        extra = carried.compute_cycles[together] - plain.compute_cycles[together]
        assert extra > coefficient("reduction")


def test_a_free_loop_is_spread_before_one_that_carries() -> None:
    """64 sums of 64 elements: with as many PEs as sums nothing needs to travel."""
    found = layouts(kernel([(BATCH, 1, 64, 64)], lambda x: [ops.ReduceOp(x, "ADD", (3,))]))
    cycles = found.compute_cycles[at(found, 8, 8)]
    assert cycles < coefficient("start") + 64 * 10 + coefficient("reduction")
    finer = found.compute_cycles[at(found, 24, 24)]
    assert finer < cycles


def test_what_every_pe_needs_is_held_by_every_pe() -> None:
    """A vector along the spread loop is cut; one along another loop is held as a whole."""
    cut = kernel([(BATCH, 1, 64), (64,)], lambda x, v: [ops.BiasAddOp(x, v)], resident=[1])
    found = layouts(cut)
    memory = found.memory_per_pe_bytes
    pes = found.area
    streams = coefficient("row_buffers") * 4 * 2 * np.ceil(64 / pes)
    expected = np.ceil(coefficient("code_bytes") + streams + 4 * np.ceil(64 / pes))
    np.testing.assert_array_equal(memory, expected)
    table = kernel(
        [(BATCH, 4, 64), (64, 4, 64)],
        lambda x, w: [ops.DotGeneralOp(x, w, (2,), (0,))],
        resident=[1],
    )
    weights = layouts(table)
    small, large = at(weights, 1, 1), at(weights, 16, 16)
    held = 4 * 64 * 4 * 64
    assert weights.memory_per_pe_bytes[small] > held
    assert weights.memory_per_pe_bytes[large] < coefficient("code_bytes") + held / 64


def test_a_table_that_is_looked_up_is_shared_out() -> None:
    def build(x: SSAValue, table: SSAValue) -> list[CirhOp]:
        rows = ops.CastOp(x, "int32")
        return [rows, ops.GatherOp(table, rows.result)]

    found = layouts(kernel([(BATCH, 1), (5000, 64)], build, resident=[1]))
    bytes_of_table = 5000 * 64 * 4
    np.testing.assert_array_less(
        found.memory_per_pe_bytes * found.area, 2 * bytes_of_table + 8192 * found.area
    )
    assert found.memory_per_pe_bytes.min() < 48 * 1024


def test_layouts_have_room_for_the_stash() -> None:
    """More PEs than have work are offered where activations of some samples need them."""
    found, more = (layouts(kernel([(BATCH, 64)], sines), stash) for stash in (0, 640_000))
    assert more.area.max() > 100 * found.area.max()


def test_busy_cycles_fit_into_the_time_of_all_pes() -> None:
    for build in (sines, sums, scans):
        found = layouts(kernel([(BATCH, 100)], build))
        assert (found.busy_pe_cycles <= found.compute_cycles * found.area + 1e-6).all()
        assert (found.busy_pe_cycles > 0).all()


def step(
    body: Callable[[Sequence[SSAValue]], tuple[list[Operation], list[SSAValue]]], state: Sequence[Shape] = ()
) -> ModuleOp:
    """A training step over a batch of 8 and some state, which it does not replace."""
    arguments = [tensor_type((8, 12), "float32"), *(tensor_type(shape, "float32") for shape in state)]
    block = Block(arg_types=arguments)
    made, outputs = body(block.args)
    block.add_ops([*made, ReturnOp(*outputs)])
    function = FuncOp("graph", (arguments, [value.type for value in outputs]), Region(block))
    names = [{INPUT_NAME: StringAttr("input_0")}]
    names += [{RESOURCE_NAME: StringAttr(f"state.model.v{number}")} for number in range(len(state))]
    function.arg_attrs = ArrayAttr([DictionaryAttr(dict(attributes)) for attributes in names])
    function.res_attrs = ArrayAttr(
        [DictionaryAttr({OUTPUT_NAME: StringAttr(f"output_{number}")}) for number in range(len(outputs))]
    )
    function.attributes[MODE] = StringAttr("train")
    module = ModuleOp([function])
    verify_module(module)
    return module


def layer(name: str, x: SSAValue, gain: SSAValue, exponent: bool = False) -> list[CirhOp]:
    wide = ops.BroadcastInDimOp(gain, (8, 12), (1,))
    scaled = ops.MulOp(x, wide.result)
    last = (ops.ExpOp if exponent else ops.SinOp)(scaled.result)
    made: list[CirhOp] = [wide, scaled, last, ops.CumSumOp(last.result, 1)]
    return [op.set_origin(layer=(name,)) for op in made]


def two_layers(exponent: bool) -> ModuleOp:
    def body(arguments: Sequence[SSAValue]) -> tuple[list[Operation], list[SSAValue]]:
        x, first_gain, second_gain = arguments
        first = layer("first", x, first_gain)
        second = layer("second", first[-1].results[0], second_gain, exponent)
        return [*first, *second], [second[-1].results[0]]

    return step(body, state=[(12,), (12,)])


def chain(pairs: int) -> ModuleOp:
    block = Block(arg_types=[tensor_type((3, 5), "float32")] * 2)
    x, y = block.args
    made: list[CirhOp] = [
        ops.BroadcastInDimOp(ops.ConstOp.splat(0.5, tensor_type((), "float32")), (3, 5), ())
    ]
    for _ in range(pairs):
        made.append(ops.MulOp(made[-1].results[0], x))
        made.append(ops.AddOp(made[-1].results[0], y))
    return lower_group(made, block.args, [made[-1].results[0]])


def test_work_of_fusing_a_chain_grows_as_its_length(calls: Callable[..., int]) -> None:
    """Fused ops are moved; copying them for each op would take minutes for thousands of ops."""
    short, module = chain(100), chain(400)
    few = calls(lambda: LairFusePass().apply(Context(), short))
    assert calls(lambda: LairFusePass().apply(Context(), module)) < 5 * few
    (nest,) = loop_program(module).nests
    assert nest.extents == (3, 5)
    values = [np.full((3, 5), 0.5, np.float32), np.arange(15, dtype=np.float32).reshape(3, 5)]
    np.testing.assert_allclose(run(module, values)[0], 2 * values[1], rtol=1e-6)


def test_equal_groups_share_one_function() -> None:
    module = two_layers(exponent=False)
    graph = match_kernels(module)
    assert [(k.name, k.family, k.generated) for k in graph.kernels] == [
        ("first", "reduction", True),
        ("second", "reduction", True),
    ]
    first, second = (k.loops for k in graph.kernels)
    assert first is not None
    assert second is not None
    assert first.program is second.program
    text = lair_text(module, graph)
    assert text.count("func.func") == 1
    assert 'cs.kernels = ["first", "second"]' in text
    different = two_layers(exponent=True)
    assert lair_text(different, match_kernels(different)).count("func.func") == 2


def test_the_kept_text_computes_the_kernel() -> None:
    module = two_layers(exponent=False)
    kept = parse_module(lair_text(module, match_kernels(module)), dialects=LAIR_DIALECTS)
    x = np.random.default_rng(3).normal(size=(8, 12)).astype(np.float32)
    gain = np.linspace(0.5, 2, 12, dtype=np.float32)
    function = next(op for op in kept.ops if isinstance(op, FuncOp))
    order = [gain, x] if function.function_type.inputs.data[0] == tensor_type((12,), "float32") else [x, gain]
    (got,) = run(kept, order)
    np.testing.assert_allclose(got, np.cumsum(np.sin(x * gain), axis=1), rtol=1e-5, atol=1e-5)


def test_calls_in_the_kept_text_have_their_own_names() -> None:
    def body(arguments: Sequence[SSAValue]) -> tuple[list[Operation], list[SSAValue]]:
        x = arguments[0]
        largest = ops.TopKOp(x, 3).set_origin(layer=("a",))
        shorter = ops.SliceOp(x, (0, 0), (8, 5)).set_origin(layer=("b",))
        again = ops.TopKOp(shorter.result, 2).set_origin(layer=("b",))
        return [largest, shorter, again], [largest.values, again.values]

    module = step(body)
    text = lair_text(module, match_kernels(module))
    names = [line.split("@")[1].split("(")[0] for line in text.splitlines() if "func.func" in line]
    assert len(names) == len(set(names)) == 4
    assert print_module(parse_module(text, dialects=LAIR_DIALECTS)) == text


def test_the_kernel_list_shows_the_loops_of_generated_kernels() -> None:
    lines = render_kernel_list(match_kernels(two_layers(exponent=False))).splitlines()
    assert lines[-4:] == [
        "  first (reduction)",
        "    for i in 0..8, j in 0..12: 3 arith ops, scan over j",
        "  second (reduction)",
        "    for i in 0..8, j in 0..12: 3 arith ops, scan over j",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("indexing_maps = [", "maps = [", "indexing_maps is None, expected an array"),
        ('"parallel"', '"sideways"', 'got "sideways" in iterator_types, expected one of parallel'),
        ("affine_map<(d0, d1) -> (d1)>", "7 : i64", "in indexing_maps, expected an affine map"),
    ],
)
def test_text_that_is_no_loop_nest(old: str, new: str, message: str) -> None:
    module = two_layers(exponent=False)
    text = lair_text(module, match_kernels(module))
    assert old in text
    with pytest.raises(ModuleSyntaxError, match=message):
        parse_module(text.replace(old, new), dialects=LAIR_DIALECTS)


def test_a_function_that_is_not_of_lair_has_no_meaning() -> None:
    with pytest.raises(LoweringError, match=r"cirh\.BroadcastInDim"):
        run(
            two_layers(exponent=False),
            [np.zeros((8, 12), np.float32), np.zeros(12, np.float32), np.zeros(12, np.float32)],
        )


@pytest.mark.parametrize("shape", [(BATCH * 64, 24), (BATCH, 64, 24), (BATCH, 64, 4, 6)])
def test_copies_share_the_rows_of_a_sample(shape: Shape) -> None:
    """A kernel may take as many PEs as its loops have independent iterations, whatever its rows are long."""
    found = layouts(kernel([shape], sines))
    whole = at(found, 6, 1)
    shared = [found[i] for i in np.flatnonzero(found.width == 6)]
    halves = min(layout.compute_cycles for layout in shared if layout.height <= 2)
    assert halves == pytest.approx(found.compute_cycles[whole] / 2, rel=0.01)
    assert found.compute_cycles.min() <= found.compute_cycles[whole] / 64 * 1.01 + 1


def test_rows_that_need_the_row_before_are_not_shared() -> None:
    along_rows = kernel([(BATCH, 64, 24)], lambda x: [ops.CumSumOp(x, 1)])
    along_a_row = kernel([(BATCH, 64, 24)], lambda x: [ops.CumSumOp(x, 2)])
    assert fastest(along_rows) > 20 * fastest(along_a_row)


def test_sums_over_rows_go_from_copy_to_copy() -> None:
    """Once a sample, or once a step where they are taken over the samples as well."""
    per_sample = fastest(kernel([(BATCH, 64, 24)], lambda x: [ops.ReduceOp(x, "ADD", (1,))]))
    per_step = fastest(kernel([(BATCH, 64, 24)], lambda x: [ops.ReduceOp(x, "ADD", (0, 1))]))
    way = coefficient("reduction") + 64
    assert per_sample - per_step == pytest.approx(way * (1 - 1 / BATCH), rel=0.1)


def test_images_leave_a_generated_kernel_line_by_line() -> None:
    """No layout shortens the stream: a start and 768 elements on four lanes for each line."""
    found = layouts(kernel([(BATCH, 32, 32, 64)], sines))
    line = coefficient("line_start") + 2 * 768 / coefficient("stream_lanes")  # float32
    assert found.transmission_cycles.min() == math.ceil(32 * line)


def test_a_generated_gelu_scales_as_the_matched_one() -> None:
    """At the pace of GPT-2 it takes as many PEs, and it can be made ten times as fast."""
    shape, pace = (BATCH * 1024, 3072), 964 * 1024

    def gelu(x: SSAValue) -> list[CirhOp]:
        numbers = [ops.ConstOp.splat(n, tensor_type(shape, "float32")) for n in (0.044715, 0.79788, 1.0, 0.5)]
        square = ops.MulOp(x, x)
        cube = ops.MulOp(square, x)
        small = ops.MulOp(cube, numbers[0])
        inner = ops.AddOp(x, small)
        bent = ops.TanhOp(scaled := ops.MulOp(inner, numbers[1]))
        factor = ops.AddOp(bent, numbers[2])
        half = ops.MulOp(x, numbers[3])
        made = [square, cube, small, inner, scaled, bent, factor, half, ops.MulOp(half, factor)]
        return [*numbers, *made]

    found = layouts(kernel([shape], gelu))
    sizes = dict.fromkeys(("resident_bytes", "stash_bytes", "step_millicycles"), 0)
    sizes |= {"rows": 1024, "row_elements": 3072, "passes": 1, "element_bytes": 4, "batch": BATCH}
    matched = configurations(Kernel("nlin", "nlin", sizes))
    least, least_matched = (int(each.area[each.cycles <= pace].min()) for each in (found, matched))
    assert least < 1.5 * least_matched
    assert found.cycles.min() < pace / 10
