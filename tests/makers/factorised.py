"""Factorised tiny networks, and how far their logits are from others."""

import torch

import squeeze
from squeeze.integrations.load_model import load_model

TOKENS = torch.randint(0, 300, (12, 48), generator=torch.Generator().manual_seed(1))


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(TOKENS).logits.float()


def distance(found, wanted):
    return float(((wanted - found).norm(dim=-1) / wanted.norm(dim=-1)).median())


def factorised(folders, kind, method, out, **options):
    return squeeze.factorize(folders(kind), method, calibration=TOKENS, out=out, **options)
