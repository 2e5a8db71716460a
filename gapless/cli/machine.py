"""What the machine and the container around this process allow, as the kernel tells it.

Everything is read below ``root``, so that a test may bring a machine of its own.
"""

import importlib.util
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_CAP_SYS_NICE = 23
# A container without a limit reports a number near 2^63 in the older of the two interfaces.
_NO_LIMIT_BYTES = 1 << 60
_NATIVE_BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True)
class Memory:
    """Main memory; ``limit_bytes`` is the container's, None where it has none."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None


@dataclass(frozen=True)
class Processor:
    """The processor's name, and which of its instructions compute in bf16, if any does."""

    name: str
    bf16_instructions: tuple[str, ...]


def allowed_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def memory(root: Path = ROOT) -> Memory:
    """Read how much memory there is, is available, and is allowed.

    ``available_bytes`` is never more than what the container's limit leaves.
    """
    sizes = dict(
        re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", _read(root / "proc/meminfo"), re.M)
    )
    total = int(sizes.get("MemTotal", 0)) * 1024
    available = int(sizes.get("MemAvailable", 0)) * 1024
    limit: int | None = None
    for folder, is_v2 in _cgroup_folders(root, "memory"):
        names = ("memory.max", "memory.current")
        if not is_v2:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        allowed, used = (_number(_read(folder / name)) for name in names)
        if allowed is None or allowed >= _NO_LIMIT_BYTES:
            continue
        limit = allowed if limit is None else min(limit, allowed)
        available = min(available, max(0, allowed - (used or 0)))
    return Memory(total, available, limit)


def cpu_quota(root: Path = ROOT) -> float | None:
    """How many cores' worth of time the container may use, or None where nothing limits it."""
    quotas = []
    for folder, is_v2 in _cgroup_folders(root, "cpu"):
        if is_v2:
            quota_us, _, period_us = _read(folder / "cpu.max").strip().partition(" ")
        else:
            quota_us, period_us = (
                _read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
            )
        quota, period = _number(quota_us), _number(period_us)
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def processor(root: Path = ROOT) -> Processor:
    """Read the processor's name and whether it has instructions for bf16."""
    text = _read(root / "proc/cpuinfo")
    name = re.search(r"^model name\s*: (.+)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*: (.+)$", text, re.M)
    present = set(flags[1].split()) if flags else set()
    native = tuple(flag for flag in _NATIVE_BF16_FLAGS if flag in present)
    return Processor(name[1] if name else os.uname().machine, native)


def may_raise_priority(root: Path = ROOT) -> bool:
    """Whether threads of this process may be given more than the usual priority."""
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", _read(root / "proc/self/status"), re.M)
    if capabilities and int(capabilities[1], 16) >> _CAP_SYS_NICE & 1:
        return True
    # A limit of 20 means the usual niceness of 0; more allows a negative one.
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    return limit > 20 or limit == resource.RLIM_INFINITY


def compiler() -> str | None:
    """The C++ compiler that would be used, as it introduces itself; None where there is none."""
    command = shutil.which(os.environ.get("CXX") or "g++")
    if command is None:
        return None
    try:
        told = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.partition("\n")[0] or command


def _cgroup_folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """This process's control group and all above it, and whether each is of version 2."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        is_v2 = not controllers
        top = mount if is_v2 else mount / controller
        folder = top / path.lstrip("/")
        # Inside a container the path may name a folder of the machine outside; its own limits then
        # are those at the top.
        while folder != top:
            if folder.is_dir():
                yield folder, is_v2
            folder = folder.parent
        yield top, is_v2


def is_compiled(package: str) -> bool | None:
    """Whether Python finds the package's code compiled, and starts without compiling it.

    The package is imported already, or not asked for: None where it is not there.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(importlib.util.cache_from_source(spec.origin)).is_file()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
