"""What `python` means inside the launchers where there is no container.

`bin/` has one wrapper for each word, and is first in PATH of every program that a launcher starts:

* `python`, `python3`: the toolkit's interpreter with `modules` of `cs_compat/tensorflow` and of
  `cs_compat/torch` in its import path, the names that programs for CS systems import;
* `python-pt`: the same with `cs_compat/torch/pt_modules`, a name of PyTorch programs that other libraries
  take another branch for;
* `python-ws`: the same as `python`, and programs that do not say how they are executed are by weight
  streaming; it has `cs_compat/tensorflow/ws_modules` besides;
* `cszoo`: the command of the Model Zoo in that `python`, wherever its package is found. A script that pip
  installs would start the interpreter without the modules.

The wrappers alone put the modules into the import path. So they are found by no other interpreter, by none
outside the launchers, and not where the toolkit has been installed by pip: what is in `modules` is importable
there under no name of its own.
"""

from __future__ import annotations

from pathlib import Path

BIN = Path(__file__).resolve().parent / "bin"
"""The wrappers, absolute."""

PYTHON_VARIABLE = "CSRUN_PYTHON"
"""Tells the wrappers the toolkit's interpreter."""
