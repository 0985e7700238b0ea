"""What the parameter file may leave out."""

from common.encoder import set_encoder_defaults
from common.run_utils import set_common_defaults


def set_defaults(params):
    set_common_defaults(params)
    set_encoder_defaults(params)
    for group in ("train_input", "eval_input"):
        params[group].setdefault("num_classes", params["model"]["num_classes"])


def get_custom_stack_params(params):
    return {}
