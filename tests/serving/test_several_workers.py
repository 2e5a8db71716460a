"""A model shared by two workers, and a device whose memory is its own: the same tokens."""

import pytest

from tests.serving import workload
from tests.serving.test_differential import same

TWO_DEVICES = {"GAPLESS_NUM_DEVICES": "2"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "engine",
    [
        {"tensor_parallel_size": 2, "environment": TWO_DEVICES},
        {"pipeline_parallel_size": 2, "environment": TWO_DEVICES},
        {"tensor_parallel_size": 2, "environment": {**TWO_DEVICES, "GAPLESS_DRIVER": "sim"}},
        {"environment": {"GAPLESS_DRIVER": "sim"}},
    ],
    ids=["tensor parallel", "pipeline parallel", "tensor parallel on sim", "sim"],
)
def test_the_tokens_of_one_worker(gapless, model, engine):
    work = workload.make(6, features=("greedy", "logprobs"), longest=60)
    mine, _ = gapless.answers(model("llama"), work, **engine)
    alone, _ = gapless.answers(model("llama"), work)
    same(mine, alone, tolerance=1e-3)
