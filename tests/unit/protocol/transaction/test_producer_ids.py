"""Producer ids are handed out once, and the next block is asked for in time."""

from __future__ import annotations

import pytest

from oncelog.actors.protocol.transaction.producer_ids import NoProducerIdError, ProducerIdBlocks
from oncelog.storage.errors import InvariantViolation


def test_without_a_block_there_is_nothing_to_take() -> None:
    blocks = ProducerIdBlocks()
    with pytest.raises(NoProducerIdError):
        blocks.take()
    assert blocks.needs_block


def test_ids_come_in_order_and_go_on_in_the_next_block() -> None:
    blocks = ProducerIdBlocks()
    blocks.add_block(10, 2)
    blocks.add_block(50, 1)
    assert [blocks.take() for _ in range(3)] == [10, 11, 50]
    assert blocks.remaining == 0


def test_the_next_block_is_due_when_a_tenth_is_left() -> None:
    blocks = ProducerIdBlocks()
    blocks.add_block(0, 100)
    for _ in range(89):
        blocks.take()
    assert not blocks.needs_block
    blocks.take()
    assert blocks.needs_block
    assert blocks.remaining == 10


def test_a_new_block_takes_away_the_need() -> None:
    blocks = ProducerIdBlocks()
    blocks.add_block(0, 100)
    blocks.add_block(100, 100)
    assert not blocks.needs_block


@pytest.mark.parametrize("first", [0, 9, 5])
def test_a_block_that_was_given_before_is_refused(first: int) -> None:
    blocks = ProducerIdBlocks()
    blocks.add_block(0, 10)
    with pytest.raises(InvariantViolation, match="I-17"):
        blocks.add_block(first, 10)
