import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gapless.errors import UsageError
from gapless.pipeline.batch_loop import BatchLoop, collect
from gapless.pipeline.decode_step import DecodeStep
from gapless.pipeline.step_program import prepare
from gapless.pipeline.token_ring import TokenRing
from tests.tiny_model import STOP, generate

PROMPTS = [[1, 5, 9, 40], [1, 7], [1, 60, 61, 62, 63, 64, 65, 66]]


class Script:
    """A program that plays given tokens, one list per step, and counts what was submitted."""

    device = torch.device("cpu")

    def __init__(self, steps, room=10**6):
        self.steps = steps
        self.tokens = torch.tensor(steps[0])
        self.ring = TokenRing(self.tokens, 5)
        self.room = room
        self.submitted = 0

    def submit(self):
        self.submitted += 1
        self.tokens.copy_(torch.tensor(self.steps[self.submitted]))
        self.ring.push()


def expected_rows(steps, stops, limit):
    rows = []
    for row in zip(*steps[:limit], strict=True):
        end = next((i + 1 for i, token in enumerate(row) if token in stops), len(row))
        rows.append(list(row[:end]))
    return rows


@given(
    rows=st.integers(1, 3).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 5), min_size=n, max_size=n), min_size=12, max_size=12
        )
    ),
    depth=st.integers(1, 4),
    limit=st.integers(1, 12),
    stops=st.sets(st.integers(0, 5), max_size=2),
)
def test_the_depth_never_shows_in_the_tokens(rows, depth, limit, stops):
    program = Script(rows)
    assert collect(BatchLoop(program, depth).run(limit, stops)) == expected_rows(rows, stops, limit)
    assert program.submitted <= limit - 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_host_reads_exactly_depth_steps_behind(depth):
    program = Script([[n] for n in range(10)])
    ahead = []
    for result in BatchLoop(program, depth).run(10):
        ahead.append(program.submitted - result.step)
    assert ahead == [min(depth - 1, 9 - step) for step in range(10)]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stop_token_is_given_and_what_follows_is_dropped(depth):
    program = Script([[4, 4], [STOP, 5], [6, 6], [7, STOP], [8, 8], [9, 9]])
    results = list(BatchLoop(program, depth).run(6, [STOP]))
    assert [result.tokens for result in results] == [(4, 4), (STOP, 5), (None, 6), (None, STOP)]
    # Double buffering learns of the stop one step late: one step too many was submitted.
    assert program.submitted == 3 + (depth - 1)


def test_results_are_numbered_and_their_times_are_in_order():
    results = list(BatchLoop(Script([[n] for n in range(5)]), 2).run(5))
    assert [result.step for result in results] == [0, 1, 2, 3, 4]
    for result in results:
        assert result.submit_start_ns <= result.submit_end_ns <= result.ready_ns


def test_host_work_sees_every_result_before_the_caller_does():
    seen = []
    loop = BatchLoop(Script([[n] for n in range(5)]), 2, seen.append)
    for count, result in enumerate(loop.run(5), start=1):
        assert seen[-1] is result
        assert len(seen) == count


class Trouble(Exception):
    pass


@pytest.mark.parametrize("kind", [Trouble, KeyboardInterrupt])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_loop_can_be_used_again_after_an_interruption(kind, depth):
    program = Script([[n] for n in range(20)])

    def work(result):
        if result.step == 2 and program.submitted < 6:
            raise kind

    loop = BatchLoop(program, depth, work)
    with pytest.raises(kind):
        collect(loop.run(5))
    program.submitted = 10
    assert collect(loop.run(4))[0][1:] == [11, 12, 13]


def test_closing_the_iterator_leaves_nothing_pending():
    program = Script([[n] for n in range(20)])
    loop = BatchLoop(program, 2)
    results = loop.run(20)
    next(results)
    results.close()
    program.submitted = 10
    assert collect(loop.run(3))[0][1:] == [11, 12]


@pytest.mark.parametrize("wanted", [0, -1])
def test_no_new_tokens_is_refused(wanted):
    with pytest.raises(UsageError, match="at least 1"):
        next(BatchLoop(Script([[1]])).run(wanted))


def test_more_tokens_than_fit_is_refused_before_anything_is_submitted():
    program = Script([[n] for n in range(9)], room=3)
    with pytest.raises(UsageError, match=r"5 new tokens .* 4 fit"):
        next(BatchLoop(program).run(5))
    assert program.submitted == 0
    assert len(collect(BatchLoop(program).run(4))[0]) == 4


def test_depth_zero_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        BatchLoop(Script([[1]]), 0)


def test_a_depth_that_the_program_was_not_prepared_for_is_refused(model):
    program = prepare(DecodeStep(model, 1, 8), depth=1)
    with pytest.raises(ValueError, match="depth 2 needs a program prepared for it"):
        BatchLoop(program, 2)


def test_a_step_that_would_overwrite_an_unread_token_is_refused(model):
    program = prepare(DecodeStep(model, 1, 32), depth=1)
    program.prefill([[1, 5]])
    program.submit()
    program.submit()
    with pytest.raises(RuntimeError, match="unread tokens"):
        program.submit()
    assert len(program.ring.pop()) == 1
    program.submit()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_model_gives_the_tokens_of_transformers_at_any_depth(model, reference, depth):
    program = prepare(DecodeStep(model, len(PROMPTS), 64), depth)
    program.prefill(PROMPTS)
    found = collect(BatchLoop(program, depth).run(40))
    assert found == [generate(reference, prompt, 40) for prompt in PROMPTS]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_model_stops_where_transformers_does(model, reference, depth):
    plain = generate(reference, PROMPTS[0], 40)
    stop = plain[10]
    program = prepare(DecodeStep(model, len(PROMPTS), 64))
    program.prefill(PROMPTS)
    found = collect(BatchLoop(program, depth).run(40, [stop]))
    assert found[0] == plain[: plain.index(stop) + 1]


def test_a_program_can_be_prefilled_and_run_again(model):
    program = prepare(DecodeStep(model, len(PROMPTS), 64))
    runs = []
    for depth in (1, 2, 1):
        program.prefill(PROMPTS)
        runs.append(collect(BatchLoop(program, depth).run(20)))
    assert runs[0] == runs[1] == runs[2]
