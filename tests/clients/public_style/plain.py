"""A training in a plain TensorFlow session: `plain.py FOLDER PARAMETER_FILE CHECKPOINT STEPS WORKERS`.

It begins with the variables of the checkpoint, takes batches of the workers in turn, and prints the losses.
"""

import json
import os
import sys
from pathlib import Path

import tensorflow as tf

FOLDER, PARAMETERS, CHECKPOINT, STEPS, WORKERS = sys.argv[1:]
sys.path[:0] = [FOLDER, str(Path(FOLDER).parent)]

from common.run_utils import get_params  # noqa: E402
from data import train_input_fn  # noqa: E402
from model import model_fn  # noqa: E402
from utils import set_defaults  # noqa: E402

v1 = tf.compat.v1


def batches_of(params, worker, workers):
    """The next batch of a worker, as tensors."""
    task = {
        "cluster": {"chief": ["a:1"], "worker": ["b:1"] * workers},
        "task": {"type": "worker", "index": worker},
    }
    os.environ["TF_CONFIG"] = json.dumps(task)
    dataset = train_input_fn(params)
    iterator = v1.data.make_initializable_iterator(dataset)
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def main(steps, workers):
    v1.disable_eager_execution()
    params = get_params(PARAMETERS, set_defaults)
    v1.set_random_seed(params["runconfig"]["tf_random_seed"])  # the order of shuffled records comes from it
    step = v1.train.get_or_create_global_step()
    inputs = [batches_of(params, worker, workers) for worker in range(workers)]
    batch = tf.nest.map_structure(lambda tensor: v1.placeholder(tensor.dtype, tensor.shape), inputs[0])
    spec = model_fn(*batch, "train", params)
    with v1.Session() as session:
        session.run(v1.tables_initializer())
        v1.train.Saver().restore(session, CHECKPOINT)
        assert session.run(step) == 0
        for number in range(steps):
            arrays = session.run(inputs[number % workers])
            feed = dict(zip(tf.nest.flatten(batch), tf.nest.flatten(arrays), strict=True))
            print("loss", number + 1, session.run([spec.loss, spec.train_op], feed)[0])


main(int(STEPS), int(WORKERS))
