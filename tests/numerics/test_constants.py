"""Constants on other devices: made once, and gone with what they are copies of."""

import gc
import weakref

import torch

from squeeze.numerics.constants import constant_on


def test_a_copy_is_made_once():
    one, other = torch.arange(3), torch.arange(3)
    assert constant_on(one, "cpu") is one
    copy = constant_on(one, torch.device("meta"))
    assert copy.device.type == "meta" and copy.shape == (3,)
    assert constant_on(one, "meta") is copy and constant_on(other, "meta") is not copy


def test_a_copy_lives_as_long_as_its_tensor():
    tensor = torch.arange(3)
    copy = weakref.ref(constant_on(tensor, "meta"))
    assert copy() is not None
    del tensor
    gc.collect()
    assert copy() is None


@torch.inference_mode()
def test_a_copy_may_be_asked_for_gradients():
    with torch.inference_mode(False):
        tensor = torch.arange(3.0)
    assert not constant_on(tensor, "meta").is_inference()
