"""What is kept on disk between runs: converted models and compiled programs.

Every entry is checked when it is opened, and lies in a folder that only its user can write to.
"""

from gapless.cache.entries import CacheError, cache_root, check, obtain, open_root

__all__ = ["CacheError", "cache_root", "check", "obtain", "open_root"]
