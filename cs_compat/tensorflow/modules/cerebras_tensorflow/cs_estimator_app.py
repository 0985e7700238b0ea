"""The estimator of the appliance generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cerebras.tf import cs_estimator  # type: ignore[import-not-found]  # in another folder

from cs_runtime.options import local_compile_dir
from estimator.errors import CallError


class CerebrasAppEstimator(cs_estimator.CerebrasEstimator):  # type: ignore[misc]
    """`cerebras.tf.cs_estimator.CerebrasEstimator` with the arguments that later programs pass by name.

    Args:
        model_fn: As for that class; so are the others.
        compile_dir: Directory of compile artifacts; `model_dir` if it cannot be created on this machine.
        config: `cerebras_appliance.cs_run_config.CSRunConfig`, whose `cs_config` names the CS system.

    Raises:
        CallError: A call needs a CS system and none is known.
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

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
        use_cs: bool = True,
    ) -> CerebrasAppEstimator:
        """Train on the CS system, or on this CPU without `use_cs`."""
        self._require_system(use_cs)
        super().train(input_fn, hooks, steps, max_steps, saving_listeners, use_cs)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | Path | None = None,
        name: str | None = None,
        use_cs: bool = True,
    ) -> dict[str, Any]:
        """Evaluate on the CS system, or on this CPU without `use_cs`."""
        self._require_system(use_cs)
        found: dict[str, Any] = super().evaluate(input_fn, steps, hooks, checkpoint_path, name, use_cs)
        return found

    def _require_system(self, use_cs: bool) -> None:
        if use_cs and self.config.cs_ip is None:
            raise CallError(
                "no CS system is known, expected the mgmt_address IP:PORT of the CSConfig, or CS_IP in the "
                "environment; pass --mgmt_address, or use_cs=False to run on this CPU"
            )
