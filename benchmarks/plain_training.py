"""Training of an example program by plain PyTorch or TensorFlow on this CPU, with their own checkpoints.

    python -m benchmarks.plain_training MODEL STEPS EVERY

Prints the seconds of the steps and of the checkpoints between them as JSON. The model is that of an example
program; loop, optimizer of PyTorch and checkpoints are the framework's: `torch.save`, or `tf.train.Saver` as
estimators use it. Neither waits until a checkpoint is on the disk.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from cs_toolkit.loader import load_model

ROOT = Path(__file__).resolve().parent.parent
PARAMS = {"fc_mnist": "params_fc_mnist", "bert": "params_bert_tiny"}

Step = Callable[[], object]
Save = Callable[[Path, int], object]


def measure(model: str, steps: int, every: int) -> dict[str, float]:
    """Train with a checkpoint after every `every` steps."""
    name, framework = model.split("/")
    folder = ROOT / "models" / model
    file = folder / "configs" / f"{PARAMS[name]}.yaml"
    step, save = (_torch if framework == "pytorch" else _tensorflow)(name, file)
    seconds = {"steps": 0.0, "checkpoints": 0.0}
    with tempfile.TemporaryDirectory() as directory:
        step()
        save(Path(directory), 0)
        for last in range(every, steps + 1, every):
            began_s = time.perf_counter()
            for _ in range(every):
                step()
            ended_s = time.perf_counter()
            save(Path(directory), last)
            seconds["steps"] += ended_s - began_s
            seconds["checkpoints"] += time.perf_counter() - ended_s
    return seconds


def _torch(name: str, file: Path) -> tuple[Step, Save]:
    import torch

    params = yaml.safe_load(file.read_text())
    models = importlib.import_module(f"models.{name}.pytorch.model")
    data = importlib.import_module(f"models.{name}.pytorch.data")
    model = (models.FcMnist if name == "fc_mnist" else models.Bert)(params)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = data.train_dataloader(params)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def step() -> None:
        optimizer.zero_grad()
        model(next(batches)).backward()
        optimizer.step()

    def save(directory: Path, number: int) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "global_step": number}
        torch.save(state, directory / f"checkpoint_{number}.pt")

    return step, save


def _tensorflow(name: str, file: Path) -> tuple[Step, Save]:
    import tensorflow as tf

    sys.path.insert(0, str(file.parents[1]))
    model, data, kinds = (importlib.import_module(each) for each in ("model", "data", "params"))
    params = load_model(file, kinds.Params).plain()
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    v1.train.get_or_create_global_step()
    features, labels = v1.data.make_one_shot_iterator(data.train_input_fn(params).repeat()).get_next()
    spec = model.model_fn(features, labels, "train", params)
    saver = v1.train.Saver()
    session = v1.Session()
    session.run(v1.global_variables_initializer())

    def save(directory: Path, number: int) -> None:
        saver.save(session, str(directory / "model.ckpt"), global_step=number)

    return session.make_callable([spec.loss, spec.train_op]), save


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of an example program, such as fc_mnist/tf")
    parser.add_argument("steps", type=int)
    parser.add_argument("every", type=int, help="interval of checkpoints, in steps")
    options = parser.parse_args()
    print(json.dumps(measure(options.model, options.steps, options.every)))
