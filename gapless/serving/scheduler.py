"""vLLM's schedulers, with what they do marked on the timeline."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from gapless.profile import host_range
from gapless.serving.metrics_page import engine_page

ASYNC_SCHEDULER = f"{__name__}.GaplessAsyncScheduler"
SYNC_SCHEDULER = f"{__name__}.GaplessScheduler"


class _Marked(Scheduler):
    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        with host_range("schedule"):
            output = super().schedule(*args, **kwargs)
        page = engine_page()
        page.set("running_requests", len(self.running))
        if output.pending_structured_output_tokens:
            page.count_wait("grammar")
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        with host_range("process"):
            return super().update_from_output(*args, **kwargs)


class GaplessScheduler(_Marked):
    """One step at a time: the reference."""


# vLLM keeps the placeholders of tokens that are not known yet only in subclasses of its own.
class GaplessAsyncScheduler(_Marked, AsyncScheduler):
    """Schedules a step before the one before it has been read."""
