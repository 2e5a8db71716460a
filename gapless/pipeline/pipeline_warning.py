"""What a pipeline warns of, at the line that called it."""

from __future__ import annotations

import os
import sys
import warnings

_FOLDER = os.path.dirname(__file__)


class PipelineWarning(RuntimeWarning):
    """A pipeline cannot do what it is for, or dropped something that had failed."""


def warn_caller(text: str) -> None:
    """Warn where the innermost line is that is not the pipeline's own.

    Warns:
        PipelineWarning: always.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _FOLDER:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, PipelineWarning, stacklevel=level)
