import py_compile
from pathlib import Path

import pytest

from gapless.cli import machine

GIB = 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   8388608 kB\n"


@pytest.fixture
def put(tmp_path):
    def put_(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    put_("proc/meminfo", MEMINFO)
    return put_


def test_this_machine():
    memory = machine.memory()
    assert 0 < memory.available_bytes <= memory.total_bytes
    assert machine.allowed_cores()
    assert machine.processor().name
    assert isinstance(machine.may_raise_priority(), bool)


def test_without_control_groups(tmp_path, put):
    assert machine.memory(tmp_path) == machine.Memory(16 * GIB, 8 * GIB, None)
    assert machine.cpu_quota(tmp_path) is None


def test_control_groups_v2_the_tightest_counts(tmp_path, put):
    put("proc/self/cgroup", "0::/outer/inner\n")
    put("sys/fs/cgroup/outer/memory.max", f"{4 * GIB}\n")
    put("sys/fs/cgroup/outer/memory.current", f"{3 * GIB}\n")
    put("sys/fs/cgroup/outer/inner/memory.max", "max\n")
    put("sys/fs/cgroup/outer/cpu.max", "150000 100000\n")
    put("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n")
    assert machine.memory(tmp_path) == machine.Memory(16 * GIB, GIB, 4 * GIB)
    assert machine.cpu_quota(tmp_path) == 1.5


def test_control_groups_v1(tmp_path, put):
    put("proc/self/cgroup", "5:cpuacct,cpu:/\n4:memory:/box\n1:name=systemd:/\n")
    put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", f"{2 * GIB}\n")
    put("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "0\n")
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert machine.memory(tmp_path) == machine.Memory(16 * GIB, 2 * GIB, 2 * GIB)
    assert machine.cpu_quota(tmp_path) == 0.5


def test_no_quota_in_v1_is_minus_one(tmp_path, put):
    put("proc/self/cgroup", "5:cpu:/\n")
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert machine.cpu_quota(tmp_path) is None


def test_a_group_named_outside_the_container(tmp_path, put):
    put("proc/self/cgroup", "0::/../../elsewhere/unseen\n")
    put("sys/fs/cgroup/cpu.max", "200000 100000\n")
    assert machine.cpu_quota(tmp_path) == 2.0


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ("flags\t\t: avx2 fma", ()),
        ("flags\t\t: avx512f avx512_bf16 amx_bf16", ("avx512_bf16", "amx_bf16")),
        ("Features\t: fp asimd bf16", ("bf16",)),
        ("flags\t\t: not_bf16_really", ()),
    ],
)
def test_bf16(tmp_path, put, flags, native):
    put("proc/cpuinfo", f"model name\t: Some CPU\n{flags}\n")
    assert machine.processor(tmp_path) == machine.Processor("Some CPU", native)


@pytest.mark.parametrize(("effective", "may"), [("0000000000800000", True), ("0", False)])
def test_priority_by_capability(tmp_path, put, monkeypatch, effective, may):
    put("proc/self/status", f"CapPrm:\tffff\nCapEff:\t{effective}\n")
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (0, 0))
    assert machine.may_raise_priority(tmp_path) is may


def test_compiler(monkeypatch, tmp_path):
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho 'cxx 1.2'\necho more\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert machine.compiler() == "cxx 1.2"
    monkeypatch.setenv("CXX", str(Path("/nowhere/cxx")))
    assert machine.compiler() is None


def test_what_is_compiled(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fresh_package.py").write_text("")
    assert machine.is_compiled("fresh_package") is False
    py_compile.compile(str(tmp_path / "fresh_package.py"))
    assert machine.is_compiled("fresh_package") is True
    assert machine.is_compiled("no_such_package") is None
