"""Builds the C++ extension ``gapless._C``; everything else is in pyproject.toml."""

import os
from pathlib import Path

from setuptools import setup

# An installed gapless whose extension is broken must not keep torch from being imported here.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
# One translation unit takes about 2 GB of compiler, so the default is one job per 3 GB of memory.
if "MAX_JOBS" not in os.environ:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    os.environ["MAX_JOBS"] = str(max(1, min(os.cpu_count() or 1, int(memory_gib // 3))))

sources = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*.cpp"))
flags = ["-O2", "-g0", "-std=c++20", "-fvisibility=hidden", "-Wall", "-Wextra"]
flags += ["-Wno-unused-parameter", "-Wno-interference-size"]
setup(
    ext_modules=[
        CppExtension(
            "gapless._C",
            sources,
            include_dirs=[str(ROOT / "csrc")],
            depends=sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*.h")),
            extra_compile_args=flags,
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True)},
)
