"""`cstorch` under the name that programs of releases 1.9 and 2 import."""

from typing import Any

from cerebras_pytorch import experimental as experimental
from cstorch import *  # noqa: F403
from cstorch import __all__ as __all__
from cstorch.aliases import public_modules

public_modules(__name__)


def __getattr__(name: str) -> Any:
    """Return a name of the session API: in release 1.9 it was in this package too."""
    from cstorch.v1 import session  # late: programs of release 2 need none of it

    if name not in session.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(session, name)
