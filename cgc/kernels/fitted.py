"""Fitted constants of the cost model, with the error that remains.

Written by `python -m benchmarks.fit_performance_model --write`; their meaning is in
`cgc.kernels.coefficients`.
"""

from __future__ import annotations

from typing import Final

FITTED: Final[dict[str, tuple[float, str]]] = {
    "matmul_reserve": (
        0.96335,
        "mean of 96, from 0.892 to 0.997",
    ),
    "matmul_mac": (
        0.87269,
        "49 shapes, median error 0.9%, largest 4.4%",
    ),
    "matmul_vector": (
        0.39999,
        "49 shapes, median error 0.9%, largest 4.4%",
    ),
    "matmul_input": (
        2.478,
        "49 shapes, median error 0.9%, largest 4.4%",
    ),
    "matmul_output": (
        0.13463,
        "49 shapes, median error 0.9%, largest 4.4%",
    ),
    "matmul_start": (
        104.04,
        "49 shapes, median error 0.9%, largest 4.4%",
    ),
    "matmul_wire_weight": (
        0.37333,
        "49 shapes, median error 0.8%, largest 4.8%",
    ),
    "matmul_wire_input": (
        0.45382,
        "49 shapes, median error 0.8%, largest 4.8%",
    ),
    "matmul_wire_output": (
        0.85334,
        "49 shapes, median error 0.8%, largest 4.8%",
    ),
    "matmul_wire_start": (
        22.202,
        "49 shapes, median error 0.8%, largest 4.8%",
    ),
    "matmul_loss_output": (
        0.85255,
        "mean of 2, from 0.85 to 0.856",
    ),
    "matmul_busy": (
        1.0465,
        "mean of 49, from 0.943 to 1.13",
    ),
    "layer_norm_start": (
        202.03,
        "26 shapes, median error 0.1%, largest 0.7%",
    ),
    "layer_norm_element": (
        10.537,
        "26 shapes, median error 0.1%, largest 0.7%",
    ),
    "layer_norm_hop": (
        1.5351,
        "26 shapes, median error 0.1%, largest 0.7%",
    ),
    "layer_norm_busy": (
        0.63545,
        "mean of 119, from 0.565 to 0.756",
    ),
    "nlin_start": (
        754.17,
        "8 shapes, median error 3.0%, largest 5.3%",
    ),
    "nlin_element": (
        54.551,
        "8 shapes, median error 3.0%, largest 5.3%",
    ),
    "nlin_busy": (
        0.75634,
        "mean of 12, from 0.577 to 0.836",
    ),
    "add_start": (
        20,
        "6 shapes, median error 0.0%, largest 0.0%",
    ),
    "add_element": (
        8,
        "6 shapes, median error 0.0%, largest 0.0%",
    ),
    "add_busy": (
        0.48227,
        "mean of 244, from 0.449 to 0.684",
    ),
    "dropout_element": (
        84.054,
        "busy time of the only shape, 78 PEs for 256 elements",
    ),
    "dropout_start": (
        181.78,
        "what remains of 518",
    ),
    "dropout_spare": (
        0.21875,
        "PEs in addition to 64 with four elements each",
    ),
    "dropout_busy": (
        0.51638,
        "mean of 94, from 0.489 to 0.576",
    ),
    "sample_start": (
        151,
        "FC-MNIST takes 669 cycles, its dropout at least 518; 0.1% of 256 rows",
    ),
    "pos_encoding_element": (
        5.4401,
        "3 shapes, median error 0.0%, largest 0.0%",
    ),
    "pos_encoding_busy": (
        0.72221,
        "mean of 5, from 0.651 to 0.931",
    ),
    "loss_element": (
        3.275,
        "exact: two shapes, 25 x 386 and 27 x 234 PEs",
    ),
    "loss_hop": (
        0.55925,
        "exact: two shapes, 25 x 386 and 27 x 234 PEs",
    ),
    "loss_wire_element": (
        4.0092,
        "mean of 2, from 4.01 to 4.01",
    ),
    "loss_busy": (
        0.84407,
        "mean of 3, from 0.84 to 0.852",
    ),
    "code_bytes": (
        6825.5,
        "an embedding of 36,550 x 256 takes 3,537 PEs",
    ),
    "emb_busy": (
        0.88826,
        "mean of 4, from 0.759 to 0.981",
    ),
    "attention_mac": (
        0.425,
        "GPT-2's core exact; 2,249 PEs, the Transformers' mean, at 563 cycles to 0.2%",
    ),
    "attention_start": (
        368.8,
        "GPT-2's core exact; 2,249 PEs, the Transformers' mean, at 563 cycles to 0.2%",
    ),
    "attention_busy": (
        1.0341,
        "mean of 66, from 0.849 to 2.3",
    ),
}
