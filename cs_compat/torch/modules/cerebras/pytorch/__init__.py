"""`cstorch` under the name that programs of later releases 2 import."""

from cs_toolkit.aliases import alias
from cstorch import *  # noqa: F403
from cstorch import __all__ as __all__
from cstorch.aliases import public_modules

public_modules(__name__)
alias(f"{__name__}.experimental", "cerebras_pytorch.experimental")
public_modules(f"{__name__}.experimental")
