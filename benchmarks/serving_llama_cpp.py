"""llama.cpp's ``llama-batched-bench`` on the same weights."""

import json
import subprocess
from pathlib import Path
from typing import Any

import gguf
import torch

from gapless.models.smollm2 import find_gguf

_TYPES = {
    "float32": gguf.GGMLQuantizationType.F32,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
    "float16": gguf.GGMLQuantizationType.F16,
}
_FILE_TYPES = {
    "float32": gguf.LlamaFileType.ALL_F32,
    "bfloat16": gguf.LlamaFileType.MOSTLY_BF16,
    "float16": gguf.LlamaFileType.MOSTLY_F16,
}
_TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def write_unpacked(path: Path, dtype: str) -> None:
    """Write SmolLM2 as GGUF with the values that gapless's converted model has.

    Those are the packed file's, unpacked and rounded to bf16; matrices become ``dtype``.
    """
    source, _ = find_gguf()
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, value in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = value.types[-1] if len(value.types) > 1 else None
        writer.add_key_value(name, value.contents(), value.types[0], sub_type=inner)
    writer.add_file_type(_FILE_TYPES[dtype])
    for tensor in reader.tensors:
        unpacked = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        rounded = unpacked.to(torch.bfloat16).float()
        if rounded.dim() == 1 or dtype == "float32":
            writer.add_tensor(tensor.name, rounded.numpy())
            continue
        as_bytes = rounded.to(_TORCH[dtype]).view(torch.uint8).numpy()
        writer.add_tensor(tensor.name, as_bytes, raw_dtype=_TYPES[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """Runs the benchmark program; a process for each load, its start not counted."""

    def __init__(self, binary: Path, model: Path, threads: int) -> None:
        self._command = [str(binary), "-m", str(model), "-ngl", "0", "--output-format", "jsonl"]
        self._command += ["-t", str(threads), "-tb", str(threads)]

    def run(self, load: dict[str, int]) -> dict[str, float]:
        """Run a load, and how it went; the first token comes with the end of all prompts."""
        batch, prompt, tokens = load["batch"], load["prompt"], load["tokens"]
        sizes = ["-c", str(batch * (prompt + tokens + 1)), "-b", "2048", "-ub", "512"]
        sizes += ["-npp", str(prompt), "-ntg", str(tokens), "-npl", str(batch)]
        done = subprocess.run([*self._command, *sizes], capture_output=True, text=True, check=True)
        return figures(done.stdout)


def figures(printed: str) -> dict[str, float]:
    """What the program's one line of JSON says."""
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1])
    return {
        "seconds": found["t"],
        "tokens_per_s": found["pl"] * found["tg"] / found["t"],
        "first_token_ms": 1e3 * found["t_pp"],
        "decode_tokens_per_s": found["speed_tg"],
    }
