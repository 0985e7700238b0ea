"""`cstorch` under the name that programs of release 1.8 import, and the experimental names of release 2."""

from cstorch import *  # noqa: F403
from cstorch import __all__ as __all__
from cstorch.aliases import public_modules
from cstorch.experimental import *  # noqa: F403
from cstorch.experimental import listener as listener

public_modules(__name__)
