"""The methods that quantise a matrix, by name."""

from squeeze.options import Reference

__all__ = ["METHODS"]

METHODS: dict[str, Reference] = {
    "gptq": "squeeze.quant.gptq:GPTQ",
    "rtn": "squeeze.quant.rtn:RTN",
    "trellis": "squeeze.quant.trellis.method:Trellis",
}
