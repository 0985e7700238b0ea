"""Schema of FC-MNIST's parameter file; `data_dir` is a folder with the IDX files of MNIST."""

from __future__ import annotations

from models.common.tf import params
from models.common.tf.params import Count, Fraction, Group


class Model(Group):
    """The network."""

    hidden_sizes: list[Count]
    dropout: Fraction = 0.0


class Params(params.Params):
    """The parameter file."""

    model: Model
