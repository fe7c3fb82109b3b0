"""All stored forms of weights, by the `quant_method` of their folders."""

from pathlib import Path

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.stored import Stored, StoredForm
from squeeze.errors import FormatError
from squeeze.factor.stored import FactorizedForm
from squeeze.prune.delta.stored import DeltaForm
from squeeze.prune.stored import SparseForm
from squeeze.quant.stored import QuantizedForm
from squeeze.quant.trellis.stored import TrellisForm

__all__ = ["FORMS", "open_stored"]

FORMS: dict[str, StoredForm] = {
    form.method: form for form in (FactorizedForm(), SparseForm(), QuantizedForm(), TrellisForm(), DeltaForm())
}


def open_stored(checkpoint: Checkpoint, base: Path | str | None = None) -> Stored:
    """Return the weights of a folder that are stored in a form: the one in config.json, or the first that recognises
    them.

    Args:
        checkpoint: The folder.
        base: Base of a difference; by default it is searched next to the folder.

    Raises:
        FormatError: If no form recognises the weights.
    """
    described = checkpoint.config.get("quantization_config")
    named = FORMS.get(str(described.get("quant_method"))) if isinstance(described, dict) else None
    for form in (named,) if named else FORMS.values():
        stored = form.open(checkpoint, base)
        if stored is not None and stored.modules:
            return stored
    raise FormatError(f"{checkpoint.folder}: its weights are dense or in an unknown form")
