"""Modules that the two sides of a stream import."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "foreign"),
    [
        ("cs_stream", {"numpy", "cryptography", "logging"}),
        ("cs_stream.sender", {"jax", "tensorflow", "torch", "grpc", "cs_stream.ring"}),
        ("cs_stream.receiver", {"jax", "tensorflow", "torch", "grpc", "cs_stream.session"}),
    ],
)
def test_each_side_imports_only_its_modules(module: str, foreign: set[str]) -> None:
    program = f"import {module}, sys; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert module in output.split()
    assert not foreign & set(output.split())
