"""Writes the data of a program: `prepare.py FOLDER_OF_THE_PROGRAM PARAMETER_FILE [EXAMPLES]`."""

import sys
from pathlib import Path

FOLDER, PARAMETERS, *REST = sys.argv[1:]
sys.path[:0] = [FOLDER, str(Path(FOLDER).parent)]

from common.run_utils import get_params  # noqa: E402
from data import prepare  # noqa: E402
from utils import set_defaults  # noqa: E402

params = get_params(PARAMETERS, set_defaults)
for seed, group in enumerate(("train_input", "eval_input")):
    prepare(params[group], seed, *map(int, REST))
