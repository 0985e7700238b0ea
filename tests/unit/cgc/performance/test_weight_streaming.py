"""The rate of weight streaming against measured rates (arXiv 2409.00287, tables IV and V)."""

from __future__ import annotations

import pytest

from cgc.kernels import Kernel, KernelGraph
from cgc.kernels.families import FAMILIES
from cgc.performance import streaming_estimate


def transformer(
    layers: int, width: int, filter_size: int, heads: int, length: int, words: int, batch: int
) -> KernelGraph:
    """The kernels with products of a decoder or encoder."""
    common = {
        "rows": length,
        "passes": 3,
        "element_bytes": 2,
        "resident_bytes": 0,
        "stash_bytes": 0,
        "step_millicycles": 0,
        "batch": batch,
    }

    def fc(name: str, inputs: int, outputs: int) -> Kernel:
        sizes = {"inputs": inputs, "outputs": outputs, "epilogue_millicycles": 0, "reload": 0}
        return Kernel(name, "fully_connected", {**common, **sizes})

    kernels = [fc("head", width, words)]
    for index in range(layers):
        sizes = {
            "keys": length,
            "heads": heads,
            "inputs": width,
            "width": width,
            "projections": 3,
            "outputs": width,
        }
        kernels += [
            Kernel(f"attention{index}", "attention", {**common, **sizes}),
            fc(f"up{index}", width, filter_size),
            fc(f"down{index}", filter_size, width),
        ]
    return KernelGraph(tuple(kernels), batch_size=batch)


@pytest.mark.parametrize(
    ("layers", "width", "heads", "length", "words", "batch", "measured"),
    [
        (24, 1024, 16, 128, 30522, 2048, 7074.6),
        (24, 1024, 16, 128, 30522, 128, 1040.5),
        (12, 768, 12, 128, 30522, 128, 2267.7),
        (32, 2560, 32, 2048, 50257, 128, 46.6),
        (40, 5120, 40, 2048, 50257, 128, 11.86),
    ],
    ids=["BERT-large", "BERT-large, small batch", "BERT-base, small batch", "GPT-3 2.7B", "GPT-3 13B"],
)
def test_rates_are_within_a_third_of_measured_ones(
    layers: int, width: int, heads: int, length: int, words: int, batch: int, measured: float
) -> None:
    estimate = streaming_estimate(transformer(layers, width, 4 * width, heads, length, words, batch))
    assert estimate.samples_per_s == pytest.approx(measured, rel=0.35)


def test_operations_of_gpt3_13b_are_six_for_each_weight_and_those_of_attention() -> None:
    estimate = streaming_estimate(transformer(40, 5120, 20480, 40, 2048, 50257, 60))
    weights = 40 * 12 * 5120**2 + 5120 * 50257
    attention = 40 * 4 * 2048 * 5120
    assert estimate.flop_per_sample == pytest.approx(2048 * (6 * weights + 3 * attention))


def test_families_say_what_streams_and_what_it_multiplies() -> None:
    graph = transformer(2, 16, 64, 4, 8, 100, 2)
    other = Kernel("add", "add", {"rows": 8, "passes": 2})
    found = streaming_estimate(KernelGraph((*graph.kernels, other), batch_size=2))
    assert found.layers == 7  # a kernel without weights is no layer
    assert found.flop_per_sample == streaming_estimate(graph).flop_per_sample
    for name in ("fully_connected", "convolution", "matmul"):
        assert FAMILIES[name].multiplications({"inputs": 3, "outputs": 5}) == 15
