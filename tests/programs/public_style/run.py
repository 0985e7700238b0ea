"""Trains, evaluates or predicts with the model in the folder of this file, to which tests copy it."""

import os
import sys

import tensorflow as tf

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from common.run_utils import create_arg_parser, get_params, run
from data import eval_input_fn, train_input_fn
from model import model_fn
from utils import get_custom_stack_params, set_defaults


def main():
    tf.compat.v1.disable_eager_execution()
    args = create_arg_parser().parse_args()
    params = get_params(args.params, set_defaults)
    run(args, params, model_fn, train_input_fn, eval_input_fn, get_custom_stack_params(params))


if __name__ == "__main__":
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    main()
