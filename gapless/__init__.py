"""Gapless: an asynchronous PyTorch device, and the proof that it never waits.

Importing torch is enough where gapless is installed: torch finds the device through its
``torch.backends`` entry point. ``import gapless`` does the same where autoloading is off.
"""

import sys

__version__ = "0.1.0"


def _autoload() -> None:
    """Register the device; torch calls this at the end of ``import torch``.

    torch is imported first, so that ``import gapless`` before ``import torch`` nests harmlessly.
    """
    import torch  # noqa: F401

    from gapless.device.register import register

    register()
    if "vllm" in sys.modules:  # torch is imported by vLLM, which will look for itself by name
        from gapless.serving.distribution_name import name_installed_vllm

        name_installed_vllm()


_autoload()
