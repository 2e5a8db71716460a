"""Random programs: what the device computes, whatever overlaps, against the CPU in program order.

``python -m tests.random`` runs them by the thousand and says how to repeat one that failed.
"""
