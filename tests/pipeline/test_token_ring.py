from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gapless.pipeline.token_ring import TokenRing


def test_a_token_is_the_one_at_the_time_of_the_push(device):
    source = torch.tensor([1, 2], device=device)
    ring = TokenRing(source, 3)
    for value in (10, 20, 30):
        source.fill_(value)
        ring.push()
    assert [ring.pop(), ring.pop(), ring.pop()] == [[10, 10], [20, 20], [30, 30]]


def test_an_unread_token_is_never_overwritten(device):
    source = torch.tensor([7], device=device)
    ring = TokenRing(source, 2)
    ring.push()
    ring.push()
    source.fill_(8)
    with pytest.raises(RuntimeError, match="all 2 token buffers hold unread tokens"):
        ring.push()
    assert ring.pop() == [7]
    ring.push()
    assert [ring.pop(), ring.pop()] == [[7], [8]]


def test_nothing_can_be_read_before_it_was_pushed(device):
    ring = TokenRing(torch.tensor([7], device=device), 2)
    with pytest.raises(RuntimeError, match="no tokens are on their way"):
        ring.pop()


def test_cleared_tokens_are_gone(device):
    ring = TokenRing(torch.tensor([7], device=device), 2)
    ring.push()
    ring.clear()
    assert ring.pending == 0
    ring.push()
    assert ring.pop() == [7]


def test_a_ring_without_slots_is_refused():
    with pytest.raises(ValueError, match="at least one slot"):
        TokenRing(torch.tensor([7]), 0)


@given(slots=st.integers(1, 4), pushes=st.lists(st.booleans(), max_size=40))
def test_it_is_a_bounded_queue(slots, pushes):
    source = torch.zeros(1, dtype=torch.int64)
    ring, queue = TokenRing(source, slots), deque()
    for number, is_push in enumerate(pushes):
        source.fill_(number)
        if is_push and len(queue) < slots:
            ring.push()
            queue.append([number])
        elif not is_push and queue:
            assert ring.pop() == queue.popleft()
        assert ring.pending == len(queue)
