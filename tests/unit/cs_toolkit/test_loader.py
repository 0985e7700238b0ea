"""YAML files that would take too long or too much memory end in an error with the line, within a second."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cs_toolkit.loader import ConfigError, load_mapping, load_yaml

LEVELS = 40


def _doubled(first: str, item: str) -> str:
    return first + "".join(f"a{i}: &a{i} {item.format(i - 1, i - 1)}\n" for i in range(1, LEVELS))


HOSTILE = {
    "aliases of aliases": (_doubled("a0: &a0 [x, x]\n", "[*a{}, *a{}]"), "14: .*more than 20,000 values"),
    "aliases in mappings": (_doubled("a0: &a0 {x: 1}\n", "{{l: *a{}, r: *a{}}}"), "13: .*20,000 values"),
    "merges": (_doubled("a0: &a0 {x: 1}\n", "{{<<: [*a{}, *a{}]}}"), "13: .*20,000 values"),
    "list in itself": ("a: 1\nb: &b [1, *b]\n", r"2: .*'\*b' is part of the value that it refers to"),
    "mapping in itself": ("&a {b: *a}\n", r"1: .*'\*a' is part of the value"),
    "merged with itself": ("a: &a {<<: *a}\n", r"1: .*'\*a' is part of the value"),
    "deep list": ("a: " + "[" * 100_000, "1: .*nested more than 64 levels"),
    "deep sequence": ("a:\n" + "- " * 50_000 + "1", "2: .*64 levels"),
    "deep mapping": ("\n".join(" " * i + "a:" for i in range(1000)), "64: .*64 levels"),
    "chain of aliases": (
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 200)),
        "64: .*64 levels",
    ),
    "long integer": ("a: 1\nb: " + "9" * 6000, "2: .*an integer has more than 64 bits"),
    "long hexadecimal integer": ("a: 0x" + "f" * 6000, "1: .*more than 64 bits"),
    "not finite": ("a: .inf\nb: 1.0e+400\n", "2: .*1.0e.400 is not a finite number"),
    "no number": ("a: .nan\n", "1: .*.nan is not a finite number"),
    "wrong tag": ("a: !!int x\n", "1: .*'x' is not a valid int"),
    "wrong time": ("a: !!timestamp x\n", "1: .*'x' is not a valid timestamp"),
    "list as a key": ("? [1, 2]\n: 3\n", "1: .*a key must be a text or a number"),
    "many values": ("a: [" + "1," * 30_000 + "]", "1: .*20,000 values"),
    "large": ("a: '" + "x" * 3_000_000 + "'", " has more than 1,048,576 characters"),
}


@pytest.mark.parametrize("load", [load_mapping, load_yaml])
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(tmp_path: Path, case: str, load: Callable[[Path], Any]) -> None:
    text, message = HOSTILE[case]
    path = tmp_path / "params.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}:{message}") as caught:
        load(path)
    assert time.process_time() - began < 1
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 500


def test_aliases_of_ordinary_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("base: &base {lr: 0.1, sizes: [1, 2]}\nother: *base\n" + f"seed: {2**64 - 1}\n")
    expected = {"lr": 0.1, "sizes": [1, 2]}
    for load in (load_mapping, load_yaml):
        assert load(path) == {"base": expected, "other": expected, "seed": 2**64 - 1}


def test_the_rules_of_numbers_and_truth_differ(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("a: on\nb: &b {c: 1}\nd: {<<: *b}\n")
    assert load_yaml(path) == {"a": True, "b": {"c": 1}, "d": {"c": 1}}
    assert load_mapping(path)["a"] == "on"
