"""What a pipeline did, and whether the host could run ahead."""

from __future__ import annotations

from dataclasses import dataclass

from gapless.pipeline.host_waits import HostWait


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """Counts and host times since the pipeline was made.

    Attributes:
        submitted_steps: inputs that were taken, those that failed included.
        read_steps: results and errors that were handed out.
        failed_steps: of all, those that gave an error.
        dropped_steps: waited for and thrown away, since the pipeline or its iterator was closed.
        in_flight_most: submitted and unread steps at any one time; at most the depth.
        prepare_us: host time in ``prepare`` and in copying inputs into pinned memory.
        submit_us: host time in submitting: the step function and the copies to and fro.
        wait_us: host time waiting for results.
        drained_steps: steps after whose function returned the device had nothing left to do. Either
            it waited for the device, or the device is quicker than the host. In both cases nothing
            overlaps with such a step.
        host_wait_steps: steps that made the host wait inside the function or ``prepare``; None
            where the device does not count these.
        host_waits: what they waited for.
        no_overlap_reason: why steps could not overlap with the host; None if nothing is known to
            have prevented it.
    """

    submitted_steps: int
    read_steps: int
    failed_steps: int
    dropped_steps: int
    in_flight_most: int
    prepare_us: float
    submit_us: float
    wait_us: float
    drained_steps: int
    host_wait_steps: int | None
    host_waits: tuple[HostWait, ...]
    no_overlap_reason: str | None
