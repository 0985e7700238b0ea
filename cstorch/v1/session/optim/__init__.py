"""`cbtorch.optim`: optimizers and schedules whose steps can be recorded, by the names of releases 1.x too."""

from cstorch import optim as _later
from cstorch.optim import *  # noqa: F403
from cstorch.v1.session.optim import lr_scheduler  # type: ignore[no-redef]  # noqa: F401

__all__ = _later.__all__
