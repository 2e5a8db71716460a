"""What all tests have in common."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _imported_stays() -> None:
    """Let the collector not look at what is there already.

    Every capture of a graph collects garbage, which takes a second once vLLM is imported.
    """
    gc.freeze()
