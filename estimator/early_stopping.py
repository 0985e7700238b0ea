"""Session hooks that stop training when a metric of evaluations stops improving or passes a threshold.

They read the events that `evaluate` writes, so evaluations may run in this process (`train_and_evaluate`) or
in another one. They work on this CPU and on the CS system. Names, arguments and defaults are those of the
removed `tf.estimator.experimental`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from operator import gt, lt
from pathlib import Path
from typing import Any

from estimator.errors import CallError
from estimator.estimators import EstimatorFacade

log = logging.getLogger("estimator")

ShouldStop = Callable[[], bool]
Better = Callable[[float, float], bool]


def make_early_stopping_hook(
    estimator: EstimatorFacade,
    should_stop_fn: ShouldStop,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Make a session hook that stops training when a function returns True.

    Args:
        estimator: The estimator that trains.
        should_stop_fn: The function, called without arguments.
        run_every_secs: Seconds between two calls.
        run_every_steps: Steps between two calls, instead of seconds.

    Raises:
        CallError: Both intervals are given or none, or an argument has the wrong type.
    """
    import tensorflow as tf

    if not isinstance(estimator, EstimatorFacade):
        raise CallError(f"expected an estimator as the first argument, got {estimator!r}")
    if not callable(should_stop_fn):
        raise CallError(f"should_stop_fn must be a function, got {should_stop_fn!r}")
    if (run_every_secs is None) == (run_every_steps is None):
        raise CallError(
            f"set one of run_every_secs and run_every_steps, got {run_every_secs} and {run_every_steps}"
        )

    class EarlyStoppingHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        """Calls the function when it is due."""

        def __init__(self) -> None:
            self._timer = tf.compat.v1.train.SecondOrStepTimer(run_every_secs, run_every_steps)

        def begin(self) -> None:
            self._global_step = tf.compat.v1.train.get_global_step()

        def before_run(self, run_context: Any) -> Any:
            return tf.compat.v1.train.SessionRunArgs(self._global_step)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            step = int(run_values.results)
            if self._timer.should_trigger_for_step(step):
                self._timer.update_last_triggered_step(step)
                if should_stop_fn():
                    log.info("early stopping: requested by the function of the hook at global step %d", step)
                    run_context.request_stop()

    return EarlyStoppingHook()


def stop_if_higher_hook(
    estimator: EstimatorFacade,
    metric_name: str,
    threshold: float,
    eval_dir: str | Path | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Make a session hook that stops training when a metric of an evaluation is above a threshold.

    Args:
        estimator: The estimator that trains.
        metric_name: Name of the metric, as `evaluate` returns it.
        threshold: The threshold.
        eval_dir: Directory of the events of evaluations; `estimator.eval_dir()` if None.
        min_steps: Ignore evaluations of checkpoints before this step.
        run_every_secs: Seconds between two checks.
        run_every_steps: Steps between two checks, instead of seconds.
    """
    stop = _beyond(estimator, metric_name, threshold, gt, eval_dir, min_steps)
    return make_early_stopping_hook(estimator, stop, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: EstimatorFacade,
    metric_name: str,
    threshold: float,
    eval_dir: str | Path | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Make a session hook that stops training when a metric of an evaluation is below a threshold.

    The arguments are those of `stop_if_higher_hook`.
    """
    stop = _beyond(estimator, metric_name, threshold, lt, eval_dir, min_steps)
    return make_early_stopping_hook(estimator, stop, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: EstimatorFacade,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | Path | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Make a session hook that stops training when a metric has had no new maximum for some steps.

    The other arguments are those of `stop_if_higher_hook`.
    """
    stop = _stuck(estimator, metric_name, max_steps_without_increase, gt, eval_dir, min_steps)
    return make_early_stopping_hook(estimator, stop, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: EstimatorFacade,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | Path | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Make a session hook that stops training when a metric has had no new minimum for some steps.

    The other arguments are those of `stop_if_higher_hook`.
    """
    stop = _stuck(estimator, metric_name, max_steps_without_decrease, lt, eval_dir, min_steps)
    return make_early_stopping_hook(estimator, stop, run_every_secs, run_every_steps)


def read_eval_metrics(eval_dir: str | Path) -> Mapping[int, Mapping[str, float]]:
    """Return the scalars of evaluations by global step, in ascending order."""
    import tensorflow as tf

    found: dict[int, dict[str, float]] = {}
    for path in sorted(Path(eval_dir).glob("*tfevents*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            values = {v.tag: v.simple_value for v in event.summary.value if v.HasField("simple_value")}
            if values:
                found.setdefault(event.step, {}).update(values)
    return OrderedDict(sorted(found.items()))


def _beyond(
    estimator: EstimatorFacade,
    metric: str,
    threshold: float,
    beyond: Better,
    eval_dir: str | Path | None,
    min_steps: int,
) -> ShouldStop:
    def stop() -> bool:
        for step, value in _values(estimator, metric, eval_dir, min_steps):
            if beyond(value, threshold):
                log.info(
                    "early stopping: %s is %g at step %d, the limit is %g", metric, value, step, threshold
                )
                return True
        return False

    return stop


def _stuck(
    estimator: EstimatorFacade,
    metric: str,
    patience_steps: int,
    better: Better,
    eval_dir: str | Path | None,
    min_steps: int,
) -> ShouldStop:
    def stop() -> bool:
        best: tuple[int, float] | None = None
        for step, value in _values(estimator, metric, eval_dir, min_steps):
            if best is None or better(value, best[1]):
                best = step, value
            if step - best[0] >= patience_steps:
                log.info(
                    "early stopping: %s is %g at step %d, the best was %g at step %d, at least %d before",
                    metric,
                    value,
                    step,
                    best[1],
                    best[0],
                    patience_steps,
                )
                return True
        return False

    return stop


def _values(
    estimator: EstimatorFacade, metric: str, eval_dir: str | Path | None, min_steps: int
) -> list[tuple[int, float]]:
    """Return the values of a metric by global step, from `min_steps` on."""
    metrics = read_eval_metrics(eval_dir or estimator.eval_dir())
    known = {name for values in metrics.values() for name in values}
    if metrics and metric not in known:
        log.warning("early stopping: the evaluations have no '%s', but %s", metric, sorted(known))
    return [(s, values[metric]) for s, values in metrics.items() if s >= min_steps and metric in values]
