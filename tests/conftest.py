"""What all tests have in common."""

import gc
import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell has it for what a script starts in the background; processes of tests inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def _imported_stays() -> None:
    """Let the collector not look at what is there already.

    Every capture of a graph collects garbage, which takes a second once vLLM is imported.
    """
    gc.freeze()
