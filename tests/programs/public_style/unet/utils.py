"""What the parameter file may leave out."""

from common.run_utils import set_common_defaults


def set_defaults(params):
    set_common_defaults(params)
    model = params["model"]
    model.setdefault("data_format", "channels_last")
    model.setdefault("initial_filters", 32)
    model.setdefault("enable_bias", True)
    model.setdefault("batch_norm", False)
    for group in ("train_input", "eval_input"):
        params[group].setdefault("use_multiple_workers", True)
        params[group].setdefault("image_shape", model["image_shape"])
        params[group].setdefault("data_format", model["data_format"])


def get_custom_stack_params(params):
    return {}
