"""What the parameter file may leave out."""

from common.run_utils import set_common_defaults


def set_defaults(params):
    set_common_defaults(params)
    params["model"].setdefault("activation", "relu")
    params["model"].setdefault("dropout_rate", 0.0)
    for group in ("train_input", "eval_input"):
        params[group].setdefault("use_multiple_workers", True)
        params[group].setdefault("num_classes", params["model"]["num_classes"])


def get_custom_stack_params(params):
    return {}
