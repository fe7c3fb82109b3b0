"""The numbers of experts in a configuration: how many a layer has, how many a token uses, and the groups of a router.

transformers has several names for each of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from squeeze.engine.experts import Experts
from squeeze.engine.network import Network
from squeeze.errors import ModelError, SqueezeError

__all__ = ["Counts", "cut_config", "mixtures"]

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k")
_GROUPS, _CHOSEN = ("n_group", "num_expert_group"), "topk_group"
_DRAFTS = "num_nextn_predict_layers"


@dataclass(frozen=True)
class Counts:
    """The numbers of experts in a configuration.

    Attributes:
        section: the part of config.json that has them, "" for the whole.
        keys: names of the number of experts.
        active_key: name of the number of experts a token.
        experts, active: these numbers.
        groups, chosen_groups: the groups of a router, of which a token uses some.
    """

    section: str
    keys: tuple[str, ...]
    active_key: str
    experts: int
    active: int
    groups: int = 1
    chosen_groups: int = 1

    @classmethod
    def of(cls, network: Network) -> "Counts":
        """Return the numbers of a model. Raises ModelError if they are not found, or differ by layer."""
        document, config = network.checkpoint.config, network.model.config.get_text_config()
        section = next((name for name in ("text_config",) if isinstance(document.get(name), dict)), "")
        known = {**config.to_dict(), **(document[section] if section else document)}
        sizes = {len(one.experts) for one in mixtures(network).values()}
        keys = tuple(key for key in _COUNTS if known.get(key) in sizes and not isinstance(known[key], bool))
        active = next((key for key in _ACTIVE if isinstance(known.get(key), int)), None)
        if len(sizes) != 1 or not keys or active is None:
            raise ModelError(
                f"{network.checkpoint.folder}: config.json of {config.model_type} has no single number of experts and "
                "of experts per token: its experts cannot be reduced"
            )
        groups = next((known[key] for key in _GROUPS if isinstance(known.get(key), int)), 1)
        return cls(section, keys, active, sizes.pop(), known[active], groups, known.get(_CHOSEN) or groups)

    def check(self, kept: int, active: int) -> None:
        """Raise SqueezeError if a router cannot choose `active` of `kept` experts."""
        if kept < active:
            raise SqueezeError(f"a token uses {active} experts, and {kept} would be left: keep more, or use `active`")
        size = kept // self.groups
        if kept % self.groups or (self.groups > 1 and size < 2):
            raise SqueezeError(
                f"the router has {self.groups} groups of experts, and {kept} experts do not divide into them: keep "
                f"{_nearest(kept, self.groups)} of {self.experts}"
            )
        if active > self.chosen_groups * size:
            raise SqueezeError(
                f"a token uses {active} experts of {self.chosen_groups} groups, which would have {size} each: keep more"
            )


def _nearest(kept: int, groups: int) -> int:
    return max(2, round(kept / groups)) * groups


def mixtures(network: Network) -> dict[str, Experts]:
    """Return the modules of experts of a network, by name."""
    return {name: one for name, one in network.model.named_modules() if isinstance(one, Experts)}


def cut_config(config: Mapping[str, Any], counts: Counts, kept: int, active: int | list[int]) -> dict[str, Any]:
    """Return a config.json with fewer experts, and without layers that draft tokens, which are left out."""
    changed = {key: value for key, value in config.items() if key != "quantization_config"}
    part = dict(changed[counts.section]) if counts.section else changed
    part |= dict.fromkeys(counts.keys, kept) | {counts.active_key: active}
    if isinstance(part.get(_DRAFTS), int):
        part[_DRAFTS] = 0
    if counts.section:
        changed[counts.section] = part
    return changed
