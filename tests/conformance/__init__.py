"""The device's operators, one by one, against torch's CPU device."""
