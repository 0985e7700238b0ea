"""The base of what watches the operations of PyTorch while a step is recorded."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """A dispatch mode that `torch.compile` never sees."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: what keeps Dynamo out imports it, 1.4 s of CPU time at the start of every program."""
        return False
