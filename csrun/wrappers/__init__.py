"""Wrappers of the interpreters that programs find in PATH inside the launchers, without a container.

`bin/` has one wrapper for each command, and is first in PATH of every program that a launcher starts:

* `python`, `python3`: the toolkit's interpreter with `cs_compat/modules` in its import path, the names that
  programs for CS systems import;
* `python-pt`: the same with a package of PyTorch programs whose presence changes what other libraries do;
* `python-ws`: the same as `python`, with weight streaming as the default execution mode, and the modules for
  it;
* `cszoo`: the command of the Model Zoo in that `python`, wherever its package is.
"""

# Only the wrappers put these modules into the import path. No other interpreter finds them, and an
# installation of the toolkit by pip adds no further top-level names. `cszoo` is among them because a script
# that pip installs would start the interpreter without the modules.

from __future__ import annotations

from pathlib import Path

# Absolute path of the wrappers.
BIN = Path(__file__).resolve().parent / "bin"

# Variable with the interpreter for the wrappers.
PYTHON_VARIABLE = "CSRUN_PYTHON"
