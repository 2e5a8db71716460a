"""Host ranges of a loop that follow each other without a hole: where one begins, the last ends.

With a range around each part of a loop, what lies between the parts is marked by nobody. That is
little, but where a step takes some hundreds of microseconds it is most of an idle gap.
"""

from time import monotonic_ns

from gapless.profile import ranges


class Phases:
    """What one loop does, one thing at a time. Use it in one thread.

    Off, a phase costs about as much as a host range that is not recorded.
    """

    __slots__ = ("_name", "_start_ns", "_step")

    def __init__(self) -> None:
        self._name: str | None = None
        self._step = -1
        self._start_ns = 0

    def begin(self, name: str, step: int = -1) -> None:
        """Say what the loop does from now on; what it did before ends at the same moment.

        Args:
            name: what it does, one word for preference; gaps are named by it.
            step: the step that it does this for; -1 for none.
        """
        if self._name is None and not ranges.is_on():
            return
        now_ns = self._end()
        if ranges.is_on():
            self._name, self._step, self._start_ns = name, step, now_ns

    def end(self) -> None:
        """Say that the loop does nothing more, or what its caller will mark."""
        if self._name is not None:
            self._end()

    def _end(self) -> int:
        now_ns = monotonic_ns()
        name, self._name = self._name, None
        if name is not None:
            ranges.append(name, self._step, self._start_ns, now_ns)
        return now_ns
