"""Block low rank beside low rank."""

from squeeze.engine.method import layer_error
from squeeze.factor.block_lowrank import BLAST
from squeeze.factor.lowrank import WhitenedSVD
from tests.makers.draws import Draws

draws = Draws(5)
matrix, moments = draws.matrix, draws.moments


def test_blast_is_no_worse_than_low_rank_of_its_rank():
    weight, hessian = matrix(48, 32), moments(32)
    found = BLAST(keep=0.5).compress(weight, hessian).tensor
    one = WhitenedSVD(rank=found.bases.shape[2], pivoted=False).compress(weight, hessian).tensor
    assert layer_error(weight, found.dequantize(), hessian) < layer_error(weight, one.dequantize(), hessian)
