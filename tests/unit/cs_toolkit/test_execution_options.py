"""The record of options, and the values that users write for them."""

from __future__ import annotations

from typing import Any

import pytest

from cs_toolkit.errors import EXIT_USAGE
from cs_toolkit.execution_options import (
    OPTIONS,
    ExecutionOptions,
    OptionError,
    Streaming,
    SystemShare,
    configure_default_of,
    default_of,
    document_options,
    micro_batch_error,
    parse_option,
    replica_error,
)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_accepts_its_defaults_and_none(name: str) -> None:
    assert OPTIONS[name].help.endswith(".")
    assert parse_option(name, None) == default_of(name)
    value = parse_option(name, configure_default_of(name))
    assert parse_option(name, value) == value


@pytest.mark.parametrize(
    ("given", "choice"), [(None, 1), (1, 1), (4, 4), ("4", 4), ("auto", "auto"), (-1, "auto"), ("-1", "auto")]
)
def test_numbers_of_replicas(given: object, choice: object) -> None:
    assert parse_option("num_replicas", given) == choice


@pytest.mark.parametrize("given", [0, -2, "0", "two", "", 2.0, True, [2]])
def test_invalid_numbers_of_replicas(given: object) -> None:
    with pytest.raises(OptionError, match="expected a whole number of 1 or more, or 'auto'") as error:
        parse_option("num_replicas", given)
    assert repr(given) in str(error.value)
    assert error.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("given", "limit_bytes"),
    [
        (None, None),
        (0, None),
        (1, None),
        (999, None),
        (1000, 1000),
        (16e9, 16 * 10**9),
        ("16 GB", 16 * 10**9),
        ("1.5mb", 1_500_000),
        ("4e9", 4 * 10**9),
        ("2048", 2048),
    ],
)
def test_a_limit_is_bytes_and_a_small_number_counts_servers(given: Any, limit_bytes: int | None) -> None:
    options = ExecutionOptions().change({"max_act_per_csx": given})
    assert options.streaming == Streaming(max_act_bytes=limit_bytes)
    assert options.change({"max_act_per_csx": options.max_act_per_csx}) == options


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        *(
            ("max_act_per_csx", given, "expected a number of bytes, a text such as '16 GB', or None")
            for given in ("much", "16 GiB", "-1", -5, float("nan"), True, "1.2.3 GB", "1e999", [1])
        ),
        ("num_csx", 0, "num_csx is 0, expected a whole number of 1 or more"),
        ("num_csx", "2", "num_csx is '2', expected a whole number of 1 or more"),
        ("num_csx", True, "num_csx is True, expected a whole number"),
        (
            "micro_batch_size",
            0,
            "micro_batch_size is 0, expected a whole number of 1 or more samples, or 'auto'",
        ),
        ("micro_batch_size", "half", "micro_batch_size is 'half', expected a whole number"),
        ("recompute", "some", "recompute is 'some', expected one of auto, none, all$"),
        ("max_wgt_servers", 0, "max_wgt_servers is 0, expected a whole number of 1 or more, or None for all"),
        ("execution", "pipeline", "execution is 'pipeline', expected one of .*; did you mean 'pipelined'?"),
        ("input_position", "me", "input_position is 'me', expected one of toolkit, program"),
    ],
)
def test_invalid_values(name: str, given: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ExecutionOptions().change({name: given})


def test_one_copy_and_auto_suit_every_run() -> None:
    for replicas in (1, "auto"):
        given = {"num_replicas": replicas, "execution": "weight_streaming", "num_csx": 4}
        ExecutionOptions().change(given).check_batch(8, trains=True)


def test_a_batch_is_shared_equally() -> None:
    ExecutionOptions(num_replicas=4).check_batch(256, trains=True)
    with pytest.raises(OptionError, match="a batch of 256 samples cannot be shared equally by 3 replicas"):
        ExecutionOptions(num_replicas=3).check_batch(256, trains=False)
    with pytest.raises(OptionError, match="a batch of 256 samples cannot be shared equally by 3 CS systems"):
        ExecutionOptions(num_csx=3).check_batch(256, trains=False)
    assert replica_error(4096, 3) is not None
    assert replica_error(4096, "auto") is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"num_replicas": 2, "execution": "weight_streaming"},
            "num_replicas is 2 with execution 'weight_str",
        ),
        ({"num_replicas": 2, "num_csx": 2}, "num_replicas is 2 with num_csx 2, expected 1"),
        ({"num_csx": 2, "execution": "pipelined"}, "num_csx is 2 with execution 'pipelined', expected 1"),
    ],
)
def test_options_that_exclude_each_other(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ExecutionOptions().change(given).check()


def test_a_micro_batch_divides_the_part_of_a_batch_in_one_system() -> None:
    assert micro_batch_error(32, Streaming(micro_batch_size=8)) is None
    assert micro_batch_error(30, Streaming(num_csx=2)) is None
    assert micro_batch_error(32, Streaming(num_csx=2, micro_batch_size=8)) is None
    error = micro_batch_error(32, Streaming(num_csx=4, micro_batch_size=16))
    assert error is not None
    assert "micro_batch_size is 16, expected a divisor of the batch of 32 samples, 8 in each of 4" in error
    options = ExecutionOptions(micro_batch_size=5)
    options.check_batch(32, trains=False)
    with pytest.raises(OptionError, match="micro_batch_size is 5, expected a divisor"):
        options.check_batch(32, trains=True)
    with pytest.raises(OptionError, match="micro_batch_size is 8 with execution 'pipelined'"):
        ExecutionOptions(micro_batch_size=8, execution="pipelined").check_batch(32, trains=True)


def test_the_share_of_a_system() -> None:
    options = ExecutionOptions(num_csx=2, max_wgt_servers=3)
    assert options.share == SystemShare(2, 3)
    assert options.needs_streaming
    assert not ExecutionOptions(num_csx=2, execution="weight_streaming").needs_streaming


def test_docstrings_describe_the_options() -> None:
    @document_options("num_csx", "recompute")
    def run() -> None:
        """Run.

        Args:
            {options}
            other: Something else.
        """

    lines = (run.__doc__ or "").splitlines()
    assert lines[3].startswith("    num_csx: Number of CS systems")
    assert lines[-1] == "    other: Something else."
