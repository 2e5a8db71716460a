"""Upstream still has what the shims work around, and the plugin stands where upstream looks."""

import ast
import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "gapless" / "serving"


def upstream():
    found = importlib.util.find_spec("vllm")
    if found is None:
        pytest.skip("vLLM is not installed")
    return Path(found.submodule_search_locations[0])


def shims():
    """(function, file, texts) of each, read from the source: importing it would import vLLM."""
    tree = ast.parse((SOURCE / "shims.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Shim":
            function, file, texts = node.args
            yield pytest.param(
                file.value, ast.literal_eval(texts), id=function.id.removeprefix("_")
            )


@pytest.mark.parametrize(("file", "texts"), list(shims()))
def test_upstream_has_what_the_shim_works_around(file, texts):
    source = (upstream() / file).read_text()
    for text in texts:
        assert text in source, f"{file} does not say {text!r} any more: look at the shim again"


def test_every_shim_is_in_the_table():
    tree = ast.parse((SOURCE / "shims.py").read_text())
    functions = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_")
    }
    assert functions == {f"_{parameter.id}" for parameter in shims()}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "platforms/__init__.py",
            "platform_plugins = load_plugins_by_group(PLATFORM_PLUGINS_GROUP)",
        ),
        ("model_executor/layers/fused_moe/router/fused_topk_router.py", "def vllm_topk_softmax("),
        ("model_executor/custom_op.py", "elif current_platform.is_out_of_tree():"),
        ("v1/worker/gpu_worker.py", 'if self.device_config.device_type == "cuda":'),
        (
            "v1/worker/gpu_model_runner.py",
            "    _freeze_gc = staticmethod(freeze_gc_for_cudagraph_capture)",
        ),
        ("v1/worker/gpu_model_runner.py", "with self._freeze_gc(), graph_capture("),
        ("v1/worker/utils.py", "buf = torch.zeros(buf_size, dtype=torch.int8, device=device)"),
        ("v1/worker/gpu_model_runner.py", "decode_threshold=self.reorder_batch_threshold,"),
        ("v1/sample/sampler.py", "self.greedy_sample(logits)"),
        ("v1/worker/gpu_input_batch.py", "self.async_copy_ready_event.synchronize()"),
    ],
)
def test_upstream_has_what_the_plugin_builds_on(file, text):
    assert text in (upstream() / file).read_text()
