"""The environments in which the commands of the documents run, and the commands that do not run here."""

from __future__ import annotations

from dataclasses import dataclass

CHECKOUT = "checkout"
"""Commands run in the root of a fresh copy of the repository, `bin/...` included."""
EXAMPLE = "example"
"""Commands run where `run.py` of an example lies, as copied by `csrun init`; the commands are in PATH."""
EMPTY = "empty"
"""Commands run in an empty folder; the commands are in PATH."""


@dataclass(frozen=True)
class Guide:
    """Blocks of a page that one user would type in sequence.

    Attributes:
        page: the document.
        headings: fragments of the headings above the blocks; none: all that no other guide has.
        place: CHECKOUT, EXAMPLE or EMPTY.
        nodes: of a Slurm cluster whose first node owns the CS system; 0: no Slurm.
        program: the number of the page's block of Python that is `run.py`.
        before: shell commands that make what the page takes for granted.
        empty: no command of the toolkit is in PATH; pip installs packages of this environment.
        image: a container image is at /software/image.
    """

    page: str
    headings: tuple[str, ...] = ()
    place: str = EXAMPLE
    nodes: int = 0
    program: int | None = None
    before: str = ""
    empty: bool = False
    image: bool = False

    def __str__(self) -> str:
        return "#".join([self.page, *self.headings[:1]])


RUN_PY_IN_A_CHECKOUT = "cp -rn models/fc_mnist/tf/. ."
INPUT_FUNCTION = """cat > pipeline.py <<'END'
import tensorflow as tf


def train_input():
    records = tf.data.Dataset.range(100_000).shuffle(1000, seed=1)
    records = records.map(lambda number: tf.random.stateless_normal([64], tf.stack([number, number])))
    return records.repeat().batch(32)
END"""

GUIDES = (
    Guide("README.md", ("with-pip",), CHECKOUT, empty=True),
    Guide("README.md", place=CHECKOUT),
    Guide("README.md", ("on-a-slurm-cluster",), CHECKOUT, 4, before=RUN_PY_IN_A_CHECKOUT),
    Guide("models/README.md", place=CHECKOUT),
    Guide("docs/how-to/containers.md", image=True),
    Guide("docs/how-to/input-analyzer.md", before=INPUT_FUNCTION),
    Guide(
        "docs/administrators/install.md",
        ("with-pip", "the-main-job", "packages-that-a-program-needs"),
        CHECKOUT,
        empty=True,
    ),
    Guide("docs/administrators/install.md", ("from-a-checkout",), CHECKOUT),
    Guide("docs/administrators/install.md", ("on-a-cluster",), nodes=4),
    Guide("docs/administrators/operating.md"),
    Guide("docs/how-to/port-tensorflow.md", program=0, place=EMPTY),
    Guide("docs/how-to/pytorch.md", place=CHECKOUT),
    Guide("docs/how-to/replicas.md", place=CHECKOUT),
    Guide("docs/administrators/security.md"),
    Guide("docs/administrators/site-configuration.md", place=CHECKOUT),
    Guide("docs/how-to/slurm.md", nodes=4),
    Guide("docs/how-to/weight-streaming.md"),
    Guide("docs/how-to/weight-streaming.md", ("on-several-hosts",), nodes=6),
    Guide("docs/how-to/weight-streaming.md", ("a-model-larger-than-the-wafer",), CHECKOUT),
)

ADDRESSES = ("10.0.0.7", "10.80.0.5", "10.80.0.100", "192.0.2.7")
"""Of the machines in the documents: all of them are this one."""

STANDS_FOR = {
    "IP:PORT": "127.0.0.1:9000",
    "/etc/csrun": "$HOME/etc/csrun",
    "/shared": "$HOME",
    "/scratch": "$HOME",
    "/software": "$HOME/software",
    " 1234": " $(csrun status | awk 'NR == 2 {print $2}')",
    "[worker-0]": "worker-0",
}
"""What a reader puts in the place of a word; a job's number is that of the newest."""

BY_CI = "`.ci/run` runs it"
INDEX = "needs a package index that has the toolkit; docs/administrators/install.md installs from a wheel"

LARGE = "takes 21 GB of disk, and minutes; `make soak` trains it"

NOT_RUN = {
    "README.md": {
        "make demo": BY_CI,
        "make test": BY_CI,
    },
    "docs/how-to/containers.md": {
        "python3 -m venv /software/programs": INDEX,
        "/software/programs/bin/pip install 'cs-toolkit[tf]' tensorflow_datasets": INDEX,
        "export CSRUN_PROGRAM_PYTHON=/software/programs/bin/python": INDEX,
    },
    "docs/administrators/install.md": {"make setup": BY_CI, "make demo": BY_CI},
    "docs/how-to/weight-streaming.md": {
        "bin/cs_system serve --memoryx-dir=/scratch": LARGE,
        "bin/csrun_wse --total-nodes=1 --tasks-per-node=2 python-ws $P/run.py --mode=train "
        "-p $P/configs/params_cerebras_gpt_1p3b_msl128.yaml -o gpt_1p3b "
        "--cs_ip=127.0.0.1:9000 --max_steps=3": LARGE,
    },
    "docs/how-to/slurm.md": {
        "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge": BY_CI,
        "make test": BY_CI,
    },
}
"""Commands that are not executed, with the reason."""

PROGRAMS = {
    ("docs/how-to/port-tensorflow.md", 0): "tests/guides/surroundings.py",
    ("docs/how-to/pytorch.md", 0): "tests/clients/cstorch/test_documents.py",
    ("docs/how-to/pytorch.md", 1): "tests/clients/cstorch/test_documents.py",
}
"""Blocks of Python that are whole programs, and what executes them."""

EXIT_CODES = {
    ("docs/how-to/input-analyzer.md", "cs_input_analyzer --apply pipeline.py:train_input"): 2,
}
"""Commands that end with another code than 0, as their page says: `--apply` refuses where nobody is asked."""
