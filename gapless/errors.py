"""What a user can put right: errors whose message is one clear line."""


class GaplessError(Exception):
    """The root of every error that the command line prints without a traceback.

    The message is one line that names the value, the limit and the remedy.
    """


class UsageError(GaplessError):
    """The request itself cannot be met: a bad option, or a prompt longer than the context."""
