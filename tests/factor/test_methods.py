"""Every method, on matrices of hardly any rank."""

import pytest
import torch

from squeeze.factor.block_lowrank import BLAST, Monarch
from squeeze.factor.lowrank import SVD, WhitenedSVD
from squeeze.factor.outliers import Quantised, WithOutliers
from squeeze.factor.tensor_network import TensorRing, TensorTrain, Tucker
from squeeze.quant.gptq import GPTQ
from tests.makers.draws import Draws

draws = Draws(6)
matrix = draws.matrix


@pytest.mark.parametrize("shape", [(30, 12), (12, 30)])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "method",
    [
        *(SVD(keep=0.5), WhitenedSVD(keep=0.5), TensorTrain(keep=0.9), Tucker(keep=0.9), TensorRing(keep=0.95)),
        *(Monarch(keep=0.5), BLAST(keep=0.5), WithOutliers(SVD(keep=0.5), 3)),
        Quantised(WhitenedSVD(keep=0.5), GPTQ(bits=8, group_size=32)),
    ],
    ids=lambda method: method.name,
)
def test_matrices_of_hardly_any_rank(shape, rank, method):
    weight = (matrix(shape[0], rank) @ matrix(rank, shape[1])).bfloat16()
    for found in (method.compress(weight, torch.eye(shape[1])), method.fallback().compress(weight)):
        dense = found.tensor.dequantize()
        share = 0.4 if method.name in ("tt", "ring") else 0.01  # rank 1 is not that of their unfoldings
        assert dense.isfinite().all() and (dense - weight).norm() <= share * weight.norm() + 1e-6
