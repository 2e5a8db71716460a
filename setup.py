"""Builds the C++ extension ``gapless._C``; everything else is in pyproject.toml."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup

# An installed gapless whose extension is broken must not keep torch from being imported here.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
from torch.utils.cpp_extension import BuildExtension, CppExtension, get_cxx_compiler

ROOT = Path(__file__).parent
# One translation unit takes about 2 GB of compiler, so the default is one job per 3 GB of memory.
if "MAX_JOBS" not in os.environ:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    os.environ["MAX_JOBS"] = str(max(1, min(os.cpu_count() or 1, int(memory_gib // 3))))

flags = ["-O2", "-g0", "-std=c++20", "-fvisibility=hidden", "-Wall", "-Wextra"]
flags += ["-Wno-unused-parameter", "-Wno-interference-size"]


class Build(BuildExtension):
    """Compiles PyTorch's headers once, and not again for each file."""

    def build_extensions(self) -> None:
        if os.environ.get("PRECOMPILED_HEADER") != "0":
            for extension in self.extensions:
                header = self.precompile(extension)
                # In a precompiled header PyTorch's templates are no system header's any more.
                extension.extra_compile_args += ["-include", str(header), "-Wno-sign-compare"]
        super().build_extensions()

    def precompile(self, extension: CppExtension) -> Path:
        """The header to include; the compiler ignores what does not fit the files' own flags."""
        header = Path(self.build_temp).resolve() / "precompiled.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / "csrc" / "torch" / "precompiled.h"
        precompiled = header.with_suffix(".h.gch")
        if precompiled.exists() and precompiled.stat().st_mtime > source.stat().st_mtime:
            return header
        shutil.copy(source, header)
        folders = [*extension.include_dirs, *self.compiler.include_dirs]
        subprocess.run(
            [
                *get_cxx_compiler().split(),
                *self.compiler.compiler_so[1:],
                *(f"-I{folder}" for folder in folders),
                *extension.extra_compile_args,
                "-DTORCH_API_INCLUDE_EXTENSION_H",
                "-DTORCH_EXTENSION_NAME=_C",
                *("-x", "c++-header", str(header), "-o", str(precompiled)),
            ],
            check=True,
        )
        return header


sources = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*.cpp"))
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
    cmdclass={"build_ext": Build.with_options(use_ninja=True)},
)
