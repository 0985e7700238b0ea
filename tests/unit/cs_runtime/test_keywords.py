"""Misspelled keywords in calls of the toolkit are one line with a suggestion, and exit code 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import cstorch
import estimator
from cs_runtime.exits import report_error
from cs_runtime.keywords import unknown_keyword_error
from estimator import CSRunConfig, EvalSpec


def model_fn(features: Any) -> Any: ...


class SGD(torch.optim.Optimizer):
    """An optimizer of the program, with the name of one of ours."""

    def __init__(self, params: Any, rate: float) -> None: ...


def parameters() -> Any:
    return torch.nn.Linear(2, 2).parameters()


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "function": (
        lambda: cstorch.save({}, "x", xyz=1),
        "save() got the unknown argument 'xyz'; expected",
    ),
    "dataclass": (
        lambda: cstorch.distributed.ClusterConfig(mgmt_adress="x"),  # type: ignore[call-arg]
        "ClusterConfig() got the unknown argument 'mgmt_adress'; did you mean 'mgmt_address'?",
    ),
    "optimizer": (
        lambda: cstorch.optim.SGD(parameters(), lr=1, momentun=1),
        "SGD() got the unknown argument 'momentun'; did you mean 'momentum'?",
    ),
    "named tuple": (
        lambda: EvalSpec(model_fn, step=3),  # type: ignore[call-arg]
        "EvalSpec() got the unknown argument 'step'; did you mean 'steps'?",
    ),
    "lazy name": (
        lambda: estimator.CerebrasEstimator(model_fn, modeldir="x"),  # type: ignore[call-arg]
        "CerebrasEstimator() got the unknown argument 'modeldir'; did you mean 'model_dir'?",
    ),
    "result of a call": (
        lambda: estimator.CerebrasEstimator(model_fn, "unused").train(model_fn, step=1),  # type: ignore[call-arg]
        "EstimatorFacade.train() got the unknown argument 'step'; did you mean 'steps'?",
    ),
    "any keyword": (
        lambda: CSRunConfig(cs_pi="x"),
        "CSRunConfig() got the unknown argument 'cs_pi'; did you mean 'cs_ip'?",
    ),
    "configure": (
        lambda: cstorch.configure(modle_dir="x"),
        "configure() got the unknown argument 'modle_dir'; did you mean 'model_dir'?",
    ),
    "backend": (
        lambda: cstorch.backend("CPU", artifact_dri="x"),
        "backend() got the unknown argument 'artifact_dri'; did you mean 'artifact_dir'?",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_one_line_and_exit_code_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    call, message = CALLS[name]
    with pytest.raises(Exception, match="argument") as caught:
        call()
    assert report_error(caught.value) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1


def test_a_function_of_the_program_or_its_framework_keeps_its_error() -> None:
    for call in (
        lambda: SGD([], momentum=1),  # type: ignore[call-arg]
        lambda: torch.optim.SGD(parameters(), momentun=1),  # type: ignore[call-arg]
        lambda: parameters(step=1),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert unknown_keyword_error(caught.value) is None


def test_an_unknown_argument_of_a_configured_optimizer_that_resembles_one_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cstorch.optim.configure_optimizer("SGD", parameters(), lr=1, momentun=1, loss_scaling_factor=2)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "SGD has no argument 'momentun', which is ignored; did you mean 'momentum'?"
    ]
