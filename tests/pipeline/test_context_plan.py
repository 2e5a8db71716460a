from types import SimpleNamespace

import pytest

from gapless.errors import UsageError
from gapless.pipeline.context_plan import ContextPlan, plan_context

MODEL = SimpleNamespace(max_position_embeddings=100)
UNBOUNDED = SimpleNamespace()


def test_the_smallest_context_that_serves_is_chosen():
    assert plan_context(MODEL, [[1] * 10, [1] * 4], 21) == ContextPlan(30, 21)


def test_the_models_limit_bounds_the_new_tokens():
    assert plan_context(MODEL, [[1] * 90], 500) == ContextPlan(100, 11)
    assert plan_context(UNBOUNDED, [[1] * 90], 500) == ContextPlan(589, 500)


def test_a_context_that_was_asked_for_is_kept():
    assert plan_context(MODEL, [[1] * 10], 5, context=64) == ContextPlan(64, 5)
    assert plan_context(MODEL, [[1] * 10], 50, context=12) == ContextPlan(12, 3)


def test_a_prompt_that_fills_the_context_still_gives_one_token():
    assert plan_context(MODEL, [[1] * 100], 5) == ContextPlan(100, 1)


@pytest.mark.parametrize(
    ("length", "tokens", "context", "message"),
    [
        (101, 5, None, r"prompt has 101 tokens .* 100 positions; shorten it or use a model"),
        (11, 5, 10, r"prompt has 11 tokens .* 10 positions; .*--context"),
        (5, 5, 101, r"101 positions .* the model has 100; use --context 100"),
        (5, 0, None, r"0 new tokens .* at least 1"),
    ],
)
def test_what_cannot_fit_is_refused(length, tokens, context, message):
    with pytest.raises(UsageError, match=message):
        plan_context(MODEL, [[1], [1] * length], tokens, context)
