"""Folders whose weights are stored in other forms, written with dense weights that every loader reads: what squeeze
prunes, factorises and quantises, and checkpoints of GPTQ and compressed-tensors.
"""

import json
from collections.abc import Callable
from pathlib import Path

from squeeze.checkpoint.checkpoint import Checkpoint, Parts, copy_other_files
from squeeze.checkpoint.pretrained import empty_model, explained, load_config
from squeeze.engine.report import NAME as REPORT
from squeeze.integrations.forms import open_stored
from squeeze.packing import folder
from squeeze.system.stamps import stamps
from squeeze.system.work import work_folder

__all__ = ["densify"]

_CONFIGS = ("quantization_config", "compression_config", "sparsity_config")


def densify(source: Path | str, target: Path | str, overwrite: bool = False) -> int:
    """Write a folder with every weight dense; the bytes of its tensors.

    Raises FormatError where nothing in the source is stored otherwise, or it is damaged; then nothing is written.
    """
    source, target = Path(source), Path(target)
    checkpoint = Checkpoint.open(source)
    with explained(source):
        stored = open_stored(checkpoint)
    config = {key: value for key, value in checkpoint.config.items() if key not in _CONFIGS}
    folder.check_target(source, target, overwrite)
    transposed = _transposed(source)
    with work_folder(target, "densifying", {"source": stamps(source)}, False) as work:
        parts, content = Parts(work), work / folder.CONTENT
        content.mkdir()
        replaced = {f"{module}.{leaf}" for module, leaves in stored.modules.items() for leaf in leaves}
        unchanged = [name for name in checkpoint.files if name not in replaced]
        for number, name in enumerate(unchanged):
            parts.put(f"rest.{number}", checkpoint.load([name], strict=False))
        for number, (module, leaves) in enumerate(stored.modules.items()):
            tensors = checkpoint.load((f"{module}.{leaf}" for leaf in leaves), strict=False)
            with explained(source):
                weight = stored.weight(module, tensors).to(stored.dtype)
            parts.put(f"dense.{number}", {f"{module}.weight": weight.T if transposed(module) else weight})
        order = [*(f"rest.{i}" for i in range(len(unchanged))), *(f"dense.{i}" for i in range(len(stored.modules)))]
        size = parts.join(order, content)
        copy_other_files(source, content)
        (content / REPORT).unlink(missing_ok=True)
        (content / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        folder.move_into_place(content, target, overwrite)
    return size


def _transposed(source: Path) -> Callable[[str], bool]:
    """Whether a module is one of GPT-2's, which store the transpose."""
    known = load_config(source)
    if hasattr(known, "quantization_config"):
        del known.quantization_config
    with explained(source):
        model = empty_model(known)
    names = {name for name, module in model.named_modules() if type(module).__name__ == "Conv1D"}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    return lambda module: module in names or prefix + module in names
