"""What the parameter file of FC-MNIST may say; `data_dir` holds the IDX files of MNIST."""

from __future__ import annotations

from models.common.tf import params
from models.common.tf.params import Count, Fraction, Group


class Model(Group):
    """The network."""

    hidden_sizes: list[Count]
    dropout: Fraction = 0.0


class Params(params.Params):
    """The whole file."""

    model: Model
