"""A long run of everything at once: ``python -m tests.soak``. It looks for leaks and hangs."""
