"""What can be wrong with a model folder or with the cache of converted models."""

from gapless.errors import GaplessError


class ModelError(GaplessError):
    """A model cannot be obtained or loaded; the message is one line with the remedy."""


class ModelCacheError(ModelError):
    """The cache folder cannot be used: unsafe permissions, not writable, or the disk is full."""
