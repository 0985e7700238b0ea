"""Public architectures train on the CS system to the numbers of their framework; `make zoo` has all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.zoo.training import LOSS_LIMIT, UPDATE_LIMIT

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 200.0

QUICK = {
    "transformers": (
        *("albert", "audio-spectrogram-transformer", "bert", "falcon", "mpnet", "opt", "resnet", "siglip"),
        "deberta-v2",  # attention by distances
        "fnet",  # a Fourier transform
        "llama",  # rotated positions, gates
        "mixtral",  # experts
        "mpt",  # ALiBi
        "pegasus",  # an encoder and a decoder
    ),
    "timm": ("mixer_s16_224", "test_vit"),
}
"""16 of all kinds, the quickest to compile."""

LONG = {
    "transformers": (
        *("clip", "gpt2", "mamba", "splinter", "swin", "switch_transformers", "t5", "wav2vec2", "whisper"),
        # variants of quick ones
        *("bert-generation", "biogpt", "dpr", "electra", "ijepa", "layoutlm", "roberta", "vit", "vit_msn"),
    ),
    "timm": (
        *("lcnet_050", "poolformer_s12", "sequencer2d_s", "test_byobnet", "test_convnext"),
        *("test_efficientnet", "test_nfnet", "test_resnet"),
    ),
    "keras": ("ConvNeXtTiny",),
}
"""Left to `make soak`: slower ones, variants, and Keras, whose process is another one."""

# A placement is needed here and not a good one, as in the other tests.
WORKER = """
import cgc.placement.place
cgc.placement.place._MOVES_PER_KERNEL = 4
from benchmarks.zoo.worker import main
main()
"""

Ask = Callable[[str, str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Trains an architecture of a library in a way, in a process with its framework that all tests share."""
    workers: list[subprocess.Popen[str]] = []

    @cache
    def worker(framework: str) -> subprocess.Popen[str]:
        folder = tmp_path_factory.mktemp(framework)
        workers.append(
            subprocess.Popen(
                [sys.executable, "-c", WORKER, framework, str(folder)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(folder / "worker.log").open("wb"),
                text=True,
            )
        )
        return workers[-1]

    def answer(library: str, name: str, way: str) -> dict[str, Any]:
        process = worker("tensorflow" if library == "keras" else "torch")
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"library": library, "name": name, "way": way, "limit_s": LIMIT_S}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        found: dict[str, Any] = json.loads(process.stdout.readline())
        return found

    yield answer
    for process in workers:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, names in QUICK.items() for name in names]
)
def test_a_model_trains_to_its_frameworks_numbers(ask: Ask, library: str, name: str) -> None:
    check(ask(library, name, "pipelined"))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, names in LONG.items() for name in names]
)
def test_another_model_does(ask: Ask, library: str, name: str) -> None:
    check(ask(library, name, "pipelined"))


def check(result: dict[str, Any]) -> None:
    assert result["status"] == "ok", f"{result['reason']}\n{result['trace']}"
    assert result["losses"] <= LOSS_LIMIT
    assert result["updates"] <= UPDATE_LIMIT
