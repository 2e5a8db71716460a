import pytest
import torch

from gapless.pipeline.divergence import first_divergence
from tests.tiny_model import generate

PROMPTS = [[1, 5, 9], [1, 7]]


def test_equal_runs_have_none(reference):
    rows = [[1, 2, 3], [4]]
    assert first_divergence(rows, [list(row) for row in rows], PROMPTS, reference) is None


def test_the_earliest_position_is_reported_with_its_margin(reference):
    rows = [generate(reference, prompt, 8) for prompt in PROMPTS]
    other = [list(row) for row in rows]
    other[0][5] = 0
    other[1][3] = 91
    found = first_divergence(rows, other, PROMPTS, reference)
    assert (found.row, found.position) == (1, 3)
    assert (found.expected, found.found) == (rows[1][3], 91)
    logits = reference(torch.tensor([[*PROMPTS[1], *rows[1][:3]]])).logits[0, -1]
    best, second = torch.topk(logits, 2).values.tolist()
    assert logits.argmax().item() == rows[1][3]
    assert found.margin == pytest.approx(best - second, rel=1e-3)


@pytest.mark.parametrize(
    ("reference_row", "other_row", "pair"), [([5, 6], [5], (6, None)), ([5], [5, 6], (None, 6))]
)
def test_a_row_that_ends_elsewhere_differs(reference, reference_row, other_row, pair):
    found = first_divergence([reference_row], [other_row], [[1]], reference)
    assert found.position == 1
    assert (found.expected, found.found) == pair
