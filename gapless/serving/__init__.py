"""vLLM on the device, through vLLM's plugin entry points.

vLLM finds :func:`platform_plugin` (entry point group ``vllm.platform_plugins``) when it starts, and
everything else follows from the platform: the worker, the model runner, attention and sampling run
on ``torch.device("gapless")``, and vLLM's own asynchronous scheduling keeps it busy. vLLM itself is
not changed. ``VLLM_PLUGINS=""`` or ``VLLM_TARGET_DEVICE=cpu`` leaves the plugin out.
"""


def platform_plugin() -> str:
    """The platform's class, for vLLM, which asks in every process, and more than once.

    vLLM swallows what a plugin raises and goes on with another platform. What stands against
    serving is therefore told when the platform itself is loaded.
    """
    from gapless.serving.distribution_name import name_installed_vllm

    name_installed_vllm()
    return "gapless.serving.platform.GaplessPlatform"
