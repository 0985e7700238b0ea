"""The estimators of the original stack, and `tf.estimator.Estimator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cs_runtime.options import local_compile_dir
from estimator import EstimatorSpec, KerasEstimator, estimators, keras_model_fn
from estimator.config import as_cs_config
from estimator.errors import UnsupportedOnCsError


class CerebrasEstimator(estimators.CerebrasEstimator):
    """`estimator.CerebrasEstimator` with its arguments in the order of tf.estimator.Estimator.

    Programs written for it skip used batches themselves when training resumes. So the toolkit skips none,
    unless the config has `input_position="toolkit"`.

    Args:
        model_fn: As for `estimator.CerebrasEstimator`; so are the others.
    """

    _input_position = "program"

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
        compile_dir: str | Path | None = None,
        use_cs: bool = True,
    ) -> None:
        own = as_cs_config(config)
        super().__init__(
            model_fn,
            model_dir=model_dir,
            compile_dir=compile_dir,
            config=own if use_cs else own.replace(cs_ip=None),
            params=params,
            warm_start_from=warm_start_from,
            use_cs=use_cs,
        )

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
        use_cs: bool = True,
        sparsifier: Any = None,
    ) -> CerebrasEstimator:
        """Train as `estimator.CerebrasEstimator` does; refuse a sparsifier."""
        if sparsifier is not None:
            raise UnsupportedOnCsError(
                f"train() got sparsifier={sparsifier!r}, expected None: train without sparsity here, or with "
                "the algorithms of cstorch.sparse in PyTorch"
            )
        super().train(input_fn, hooks, steps, max_steps, saving_listeners, use_cs)
        return self


class WeightStreamingEstimator(CerebrasEstimator):
    """`CerebrasEstimator` with weight streaming; the original has it under the same name in another module.

    Args:
        model_fn: As for that class, as are the other arguments.
        config: The configuration; its `execution` is ignored.
    """

    def __init__(self, model_fn: Any, model_dir: Any = None, config: Any = None, **arguments: Any) -> None:
        streamed = as_cs_config(config).replace(execution="weight_streaming")
        super().__init__(model_fn, model_dir, streamed, **arguments)


class CerebrasAppEstimator(CerebrasEstimator):
    """`CerebrasEstimator` with the arguments that later programs pass by name.

    Args:
        model_fn: As for that class; so are the others.
        compile_dir: Directory of compile artifacts; `model_dir` if it cannot be created on this machine.
        config: `cerebras_appliance.cs_run_config.CSRunConfig`, whose `cs_config` names the CS system.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        compile_dir: str | Path | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        super().__init__(
            model_fn,
            model_dir=model_dir,
            config=config,
            params=params,
            warm_start_from=warm_start_from,
            compile_dir=local_compile_dir(compile_dir),
        )

    def train(  # type: ignore[override]  # the original's has no sparsifier
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
        use_cs: bool = True,
    ) -> CerebrasAppEstimator:
        """Train on the CS system, or on this CPU without `use_cs`."""
        super().train(input_fn, hooks, steps, max_steps, saving_listeners, use_cs)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
        use_cs: bool = True,
    ) -> dict[str, Any]:
        """Evaluate on the CS system, or on this CPU without `use_cs`."""
        return super().evaluate(input_fn, steps, hooks, checkpoint_path, name, use_cs)


def KerasModelToCerebrasEstimator(  # noqa: N802 - the original name
    model: Any, model_dir: str | Path | None = None, config: Any = None, **arguments: Any
) -> KerasEstimator:
    """Make an estimator of a compiled Keras model; other arguments are those of `estimator.KerasEstimator`.

    As with `CerebrasEstimator`, the program skips used batches itself when training resumes.
    """
    own = as_cs_config(config)
    position = own.input_position or "program"
    return KerasEstimator(model, model_dir, config=own.replace(input_position=position), **arguments)


def KerasModelToModelFn(keras_model: Any) -> Callable[..., EstimatorSpec]:  # noqa: N802 - the original name
    """Make a `model_fn(features, labels, mode, params)` of a compiled Keras model."""
    return keras_model_fn(keras_model)


class Estimator(CerebrasEstimator):
    """Trains, evaluates and predicts on this CPU, with the arguments of the removed class in its order."""

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        super().__init__(
            model_fn,
            model_dir=model_dir,
            config=config,
            params=params,
            warm_start_from=warm_start_from,
            use_cs=False,
        )


class _Sparsifiers(dict[str, type]):
    def __missing__(self, name: str) -> type:
        raise UnsupportedOnCsError(
            f"TensorFlow programs got the sparsifier {name!r}, expected none: train without sparsity here, "
            "or with the algorithms of cstorch.sparse in PyTorch"
        )


SPARSIFIER_MAP = _Sparsifiers()


def get_AdamW_aware_sparsifier_class(base_sparsifier: Any) -> Any:  # noqa: N802  # the original's name
    """Return the class unchanged."""
    return base_sparsifier


def prep_orchestrator() -> None:
    """Do nothing: the launchers start all tasks."""
