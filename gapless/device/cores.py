"""Which cores the device takes and which the host keeps."""

from dataclasses import dataclass

from gapless import _C


@dataclass(frozen=True)
class CorePlan:
    """The cores by number, and why they were chosen."""

    device_cores: tuple[int, ...]
    host_cores: tuple[int, ...]
    reason: str


def plan() -> CorePlan:
    """Decide from this process's affinity and ``GAPLESS_DEVICE_CORES``.

    Raises:
        ValueError: a bad ``GAPLESS_DEVICE_CORES``, with the value, the limit and the remedy.
    """
    device_cores, host_cores, reason = _C.core_plan()
    return CorePlan(tuple(device_cores), tuple(host_cores), reason)
