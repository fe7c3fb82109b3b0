"""What bench experts takes the place of is there."""

from unittest.mock import patch

from bench.measures.experts import SHOWN
from squeeze.engine import block


def test_experts_can_be_kept_from_seeing_all_tokens() -> None:
    with patch.object(block._Walk, *SHOWN):
        assert block._Walk._reached_by_few(None, None, {}) is None
