"""What the parameter file may leave out, and options of the stack."""

from common.encoder import set_encoder_defaults
from common.run_utils import set_common_defaults


def set_defaults(params):
    set_common_defaults(params)
    set_encoder_defaults(params)
    params["model"].setdefault("mlm_loss_weight", 1.0)
    for group in ("train_input", "eval_input"):
        params[group].setdefault("pad_label", -1)


def get_custom_stack_params(params):
    try:
        from cerebras.pb.stack.full_pb2 import FullConfig
    except ImportError:
        return {}
    config = FullConfig()
    config.matching.kernel.enable_pipelined_mlm_loss = True
    config.matching.remove_meta_kernels.remove_reshape_meta = True
    return {"config": config}
