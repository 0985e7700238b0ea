"""`cstorch` under the name that programs of release 1.8 import, and the experimental names of release 2."""

from typing import Any

from cstorch import *  # noqa: F403
from cstorch import __all__ as __all__
from cstorch import experimental as _release_2
from cstorch.aliases import public_modules

public_modules(__name__)


def __getattr__(name: str) -> Any:
    return getattr(_release_2, name)
