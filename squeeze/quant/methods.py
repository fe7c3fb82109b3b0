"""The methods that quantise a matrix, by name."""

from squeeze.options import Reference

__all__ = ["METHODS"]

METHODS: dict[str, Reference] = {
    "awq": "squeeze.quant.awq:AWQ",
    "gptq": "squeeze.quant.gptq:GPTQ",
    "rtn": "squeeze.quant.rtn:RTN",
    "trellis": "squeeze.quant.trellis.method:Trellis",
}
