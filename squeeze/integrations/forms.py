"""Every form of stored weights, by the `quant_method` of its folders."""

from squeeze.checkpoint.stored import StoredForm
from squeeze.factor.stored import FactorizedForm
from squeeze.prune.stored import SparseForm
from squeeze.quant.stored import QuantizedForm

__all__ = ["FORMS"]

# A folder is offered to them in this order: the last one takes every quantization_config that there is.
FORMS: dict[str, StoredForm] = {form.method: form for form in (FactorizedForm(), SparseForm(), QuantizedForm())}
