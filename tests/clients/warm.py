"""Runs programs in sequence, each in a separate process: `warm.py FOLDER [PACKAGE...]`.

Every process is forked from this one, which has imported what all programs import: many programs run in the
time of a few starts of TensorFlow. AutoGraph has converted the layers in the packages, folders that many
programs share: that would be a third of the time of a program. In a job the tasks begin each program
together.

Lists of programs are in the folder, programs_0.json, programs_1.json and so on, or come there later; one
without programs is the last. Output of the first list goes into logs_0, where `done` is written after it.

A list has {"name": ..., "words": [script, arguments...], "kill_at": text or null, "code": exit code}. A
program is killed where its chief has written that text; else it has to end with that code.
"""

import gc
import inspect
import json
import os
import signal
import sys
import time
from itertools import count
from pathlib import Path

from cs_toolkit.garbage import infrequent_collection, use_infrequent_collection

with infrequent_collection():
    import tensorflow as tf
    from tensorflow.python.autograph.core.converter import ConversionOptions, ProgramContext
    from tensorflow.python.autograph.impl import api
    from tensorflow_graphs import optimize_graphs

    import estimator.cs.run

sys.path.append(str(Path(__file__).parents[2]))
from tests.programs.forked import end, load, load_compiler, run_program

sys.path.pop()

PYTORCH = ("aten", "torch")
TIMEOUT_S = 600.0
LIST_TIMEOUT_S = 3600.0
POLL_S = 0.02

CONVERTED = []
"""Modules that have to stay, since AutoGraph finds by the code of a function what it has converted."""


def task():
    """Name of this task, and names of all tasks of the job."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config.get("cluster"):
        return "chief-0", ["chief-0"]
    names = [f"{kind}-{index}" for kind, hosts in config["cluster"].items() for index in range(len(hosts))]
    return f"{config['task']['type']}-{config['task']['index']}", names


def wait_for(condition, what, timeout_s=TIMEOUT_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{task()[0]} has waited {timeout_s:g} s for {what}")
        time.sleep(POLL_S)


def meet(folder, name):
    """Returns when all tasks have come to this program."""
    own, tasks = task()
    (folder / f"{name}.{own}.here").touch()
    wait_for(
        lambda: all((folder / f"{name}.{other}.here").exists() for other in tasks), f"all to begin {name}"
    )


def run(words, log, kill_at):
    """Exit code of a program whose output goes into a file; in the forked process this does not return."""
    child = os.fork()
    if not child:
        become(words, log)
    if kill_at is not None:
        wait_for(lambda: log.exists() and kill_at in log.read_text(), kill_at)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def become(words, log):
    with log.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent)
    end(run_program(words[0]))


def convert(package):
    """AutoGraph converts the layers of a package in a folder, which programs then import for themselves."""
    sys.path.insert(0, str(package.parent))
    load(package.name, without=PYTORCH)
    del sys.path[0]
    names = [name for name in sys.modules if name.partition(".")[0] == package.name]
    modules = [sys.modules.pop(name) for name in names]
    CONVERTED.extend(modules)
    context = ProgramContext(ConversionOptions(recursive=True, optional_features=None))
    for module in modules:
        for function in functions_of(module):
            try:
                api._TRANSPILER.transform_function(function, context)
            except Exception as error:  # what cannot be converted is called as it is
                print(f"not converted: {function.__qualname__}: {error}")


def functions_of(module):
    """Yield the methods of layers, and functions next to them."""
    layers = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, tf.keras.layers.Layer)
    ]
    for place in (module, *layers) if layers else ():
        for value in vars(place).values():
            if (
                inspect.isfunction(value)
                and value.__module__ == module.__name__
                and value.__name__ != "__init__"
            ):
                yield value


def main(folder, packages):
    own = task()[0]
    use_infrequent_collection()  # else programs search what was imported for a quarter of their time
    optimize_graphs(False)
    assert all((estimator.cs.run, tf.keras.layers.Layer))
    load("cs_runtime", "estimator", "input_rules", without=PYTORCH)
    if own == "chief-0":
        load_compiler(without=PYTORCH)
        for package in packages:
            convert(package)
    gc.freeze()  # else every forked process takes a second to end
    for number in count():
        file, logs = folder / f"programs_{number}.json", folder / f"logs_{number}"
        wait_for(file.exists, file.name, LIST_TIMEOUT_S)
        programs = json.loads(file.read_text())
        if not programs:
            return
        logs.mkdir(exist_ok=True)
        for program in programs:
            run_together(program, own, logs)
        meet(logs, "the end")
        (logs / "done").touch()


def run_together(program, own, logs):
    """Runs a program when all tasks have come to it.

    Raises:
        SystemExit: it has ended with another code than it should.
    """
    name, killed = program["name"], program["kill_at"] is not None
    meet(logs, name)
    log = logs / f"{name}.{own}.log"
    code = run(program["words"], log, program["kill_at"] if own == "chief-0" else None)
    expected = (program["code"],)
    if killed:
        expected = (-signal.SIGKILL,) if own == "chief-0" else (0, 1)
    if code not in expected:
        sys.exit(f"{name} ended with {code}:\n{log.read_text(errors='replace')[-4000:]}")
    print(f"{name} done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(package) for package in sys.argv[2:]])
