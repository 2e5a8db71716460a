"""The profile: what a device did and when, and what the host was doing while it idled.

``record`` writes a recording, ``Timeline`` holds one, ``analyse`` finds its idle gaps, and
``write_trace`` shows it in Perfetto; ``gapless view`` does all of that for folders of them.
None but ``record`` needs a device.
"""

from gapless.profile.gaps import Cause, Gap, GapStats, IdleReport, analyse
from gapless.profile.process_name import name_process
from gapless.profile.ranges import HostRanges, HostThread, host_range
from gapless.profile.recording import Recording, finish, record
from gapless.profile.steps import StepStats
from gapless.profile.timeline import WORK_COLUMNS, WORK_KINDS, Timeline, TimelineError
from gapless.profile.tokens import count_tokens
from gapless.profile.trace import write_trace

__all__ = [
    "WORK_COLUMNS",
    "WORK_KINDS",
    "Cause",
    "Gap",
    "GapStats",
    "HostRanges",
    "HostThread",
    "IdleReport",
    "Recording",
    "StepStats",
    "Timeline",
    "TimelineError",
    "analyse",
    "count_tokens",
    "finish",
    "host_range",
    "name_process",
    "record",
    "write_trace",
]
