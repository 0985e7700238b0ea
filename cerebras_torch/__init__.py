"""The session API by its public name: `import cerebras_torch as cbtorch`."""

import sys

from cs_toolkit.aliases import alias

alias(__name__, "cstorch.v1.session")
sys.modules[f"{__name__}.saver.pt_h5_saver"] = sys.modules["cstorch.saver"]
