"""A program in the manner of public ones, at a size whose compile report was published."""

from __future__ import annotations

import re
from typing import Any

import pytest

SAMPLES_PER_S = 860.3
"""GPT-2 small with 1024 tokens (augustuszzq/Regular-DABench-LLM, gpt2_compile_report.txt)."""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_gpt2_small_has_the_published_rate(workshop: Any) -> None:
    smaller = {"batch_size": 4}  # the rate in samples is that of any batch
    file = workshop.parameters("gpt2", "gpt2_small", train_input=smaller, eval_input=smaller)
    compilation = workshop.program("gpt2", "-m", "train", "--compile_only", "-p", file)
    workshop.run({"data": workshop.script("prepare.py", "gpt2", file, "8"), "compile": compilation})
    report = next((workshop.directory / "gpt2").glob("cs_*/compile_report.txt")).read_text()
    rate = re.search(r"^Samples/s: +([0-9.]+)", report, re.MULTILINE)
    assert rate is not None
    assert float(rate[1]) == pytest.approx(SAMPLES_PER_S, rel=0.05)
