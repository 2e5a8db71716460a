"""Drivers: the choice of one, a vendor's shared object, and what the simulator promises."""

import shutil
import subprocess
from pathlib import Path

import pytest
from child import run

ROOT = Path(__file__).parents[2]

USE = "import torch; print((torch.ones(3, device='gapless') + 1).tolist())"


def compiled(folder: Path, *options: str) -> Path:
    """The example driver, whose memory only its copies reach, as a shared object."""
    target = folder / "copy_only_driver.so"
    source = ROOT / "examples/driver/copy_only_driver.c"
    compiler = shutil.which("cc") or "gcc"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [compiler, "-std=c11", "-O1", *warnings, "-shared", "-fPIC", f"-I{ROOT / 'csrc'}"]
    subprocess.run([*command, *options, str(source), "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="session")
def copy_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver"))


def test_an_unknown_driver():
    done = run(USE, GAPLESS_DRIVER="tpu9")
    assert "GAPLESS_DRIVER=tpu9: no such driver; there are: cpu, sim." in done.stderr


def test_a_shared_object_that_is_not_there():
    done = run(USE, GAPLESS_DRIVER="/nowhere/driver.so")
    assert "GAPLESS_DRIVER=/nowhere/driver.so: there is no file /nowhere/driver.so" in done.stderr


def test_a_shared_object_that_everybody_may_write(copy_only, tmp_path):
    path = tmp_path / "driver.so"
    shutil.copy(copy_only, path)
    path.chmod(0o777)
    assert (
        f"everybody may write to {path}; chmod o-w it" in run(USE, GAPLESS_DRIVER=str(path)).stderr
    )


def test_a_file_that_is_no_driver(tmp_path):
    path = tmp_path / "driver.so"
    path.write_text("nothing")
    path.chmod(0o600)
    done = run(USE, GAPLESS_DRIVER=str(path))
    assert f"GAPLESS_DRIVER={path}: {path}: " in done.stderr
    assert done.returncode == 1


def test_a_driver_of_another_contract(tmp_path):
    source = tmp_path / "old.c"
    source.write_text(
        '#include "drivers/driver.h"\n'
        'static const gapless_driver old = {.abi_version = 1, .name = "old"};\n'
        "const gapless_driver* gapless_driver_entry_point(void) { return &old; }\n"
    )
    path = tmp_path / "old.so"
    command = ["cc", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", str(source), "-o", str(path)]
    subprocess.run(command, check=True)
    done = run(USE, GAPLESS_DRIVER=str(path))
    assert "the driver has contract version 1, this gapless needs 3" in done.stderr


def test_an_announced_driver(copy_only, tmp_path):
    package = tmp_path / "acme"
    package.mkdir()
    (package / "acme_gapless.py").write_text(f"def driver_path():\n    return {str(copy_only)!r}\n")
    info = package / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gapless.drivers]\nacme = acme_gapless:driver_path\n")
    code = f"import sys; sys.path.insert(0, {str(package)!r})\n{USE}\n"
    code += "print(torch.gapless.get_device_properties().driver)"
    done = run(code, GAPLESS_DRIVER="acme", PYTHONPATH=f"{package}:{ROOT}")
    assert (done.stdout, done.returncode) == ("[2.0, 2.0, 2.0]\ncopy_only\n", 0), done.stderr


def test_operators_that_went_through_host_copies_are_counted(copy_only):
    done = run(
        """
        import torch
        x = torch.arange(12.0, device="gapless").reshape(3, 4)
        x.t().add_(1)
        x[:, 1:].copy_(x[:, :-1].clone())
        print(x.sum().item(), x.to(torch.int64).tolist())
        staged = torch.gapless.departures.staged_operators()
        print(sum(count for name, count in staged.items() if name.startswith("aten::add")))
        """,
        GAPLESS_DRIVER=str(copy_only),
    )
    expected = "[[1, 1, 2, 3], [5, 5, 6, 7], [9, 9, 10, 11]]"
    assert done.stdout == f"69.0 {expected}\n1\n", done.stderr


@pytest.mark.parametrize(
    "suite",
    [
        pytest.param("test_eager.py", marks=pytest.mark.thorough),
        pytest.param("test_streams.py", marks=pytest.mark.thorough),
        "test_graphs.py",
    ],
)
def test_the_device_passes_its_tests_on_private_memory(copy_only, suite):
    path = str(ROOT / "tests/device" / suite)
    code = f"import pytest, sys; sys.exit(pytest.main(['-q', '-x', {path!r}]))"
    done = run(code, timeout_s=400, GAPLESS_DRIVER=str(copy_only))
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_simulator_explains_a_touch_by_the_host():
    done = run(
        """
        import ctypes, torch
        x = torch.ones(4, device="gapless")
        torch.accelerator.synchronize()
        ctypes.string_at(x.data_ptr(), 4)
        """,
        GAPLESS_DRIVER="sim",
    )
    assert done.returncode == -11
    assert "gapless sim: host code touched memory of gapless:0" in done.stderr


def test_simulated_time_is_the_models_and_chained():
    done = run(
        """
        import torch
        from gapless import _C
        x = torch.ones(8, device="gapless")
        graph = torch.accelerator.Graph()
        with graph:
            x.add_(1)
        torch.accelerator.synchronize()
        _C.recorder_start(1000)
        for _ in range(6):
            graph.replay()
        torch.accelerator.synchronize()
        table, names, dropped = _C.recorder_drain()
        replays = [row for row in table.tolist() if names[row[4]] == "graph replay"]
        print(len(replays), {end - start for *_, start, end in replays})
        print([b[7] - a[8] for a, b in zip(replays, replays[1:])])
        """,
        GAPLESS_DRIVER="sim",
        GAPLESS_SIM_WORK_US="graph replay=20000",
    )
    assert done.stdout == "6 {20000000}\n[0, 0, 0, 0, 0]\n", done.stderr


def test_a_wait_starts_when_the_other_stream_got_there():
    done = run(
        """
        import torch
        from gapless import _C
        x = torch.ones(8, device="gapless")
        graph = torch.accelerator.Graph()
        with graph:
            x.add_(1)
        other = torch.Stream("gapless")
        torch.accelerator.synchronize()
        _C.recorder_start(1000)
        graph.replay()
        event = torch.Event("gapless")
        event.record()
        with other:
            event.wait()
            torch.zeros(4, device="gapless")
        torch.accelerator.synchronize()
        table, names, dropped = _C.recorder_drain()
        rows = table.tolist()
        replay = next(row for row in rows if names[row[4]] == "graph replay")
        after = next(row for row in rows if "zero" in names[row[4]] or "fill" in names[row[4]])
        print(after[1] != replay[1], after[7] - replay[8])
        """,
        GAPLESS_DRIVER="sim",
        GAPLESS_SIM_WORK_US="graph replay=30000",
    )
    assert done.stdout == "True 0\n", done.stderr


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("GAPLESS_SIM_WORK_US", "mm", "'mm' is not NAME=MICROSECONDS"),
        ("GAPLESS_SIM_NUMERICS", "fast", "give exact"),
        ("GAPLESS_SIM_COPY_GBPS", "-1", "give a number that is at least 0"),
        ("GAPLESS_SIM_MEMORY", "big", "give bytes, or a number with K, M, G or T"),
        ("GAPLESS_NUM_DEVICES", "0", "give a whole number from 1 to 64"),
    ],
)
def test_a_bad_setting_of_the_simulator(name, value, remedy):
    done = run(USE, GAPLESS_DRIVER="sim", **{name: value})
    assert f"{name}={value}: {remedy}" in done.stderr


def test_a_simulator_of_speed_alone_computes_nothing():
    done = run(
        "import torch; x = torch.zeros(3, device='gapless'); x.add_(1); print(x.tolist())",
        GAPLESS_DRIVER="sim",
        GAPLESS_SIM_NUMERICS="none",
    )
    assert done.stdout == "[0.0, 0.0, 0.0]\n", done.stderr


def test_the_simulators_memory_is_its_own_limit():
    done = run(
        """
        import torch
        try:
            torch.empty(3 << 20, dtype=torch.uint8, device="gapless")
            torch.empty(64 << 20, dtype=torch.uint8, device="gapless")
        except torch.OutOfMemoryError as error:
            print(error)
        """,
        GAPLESS_DRIVER="sim",
        GAPLESS_SIM_MEMORY="32M",
    )
    assert "wanted 64.00 MiB" in done.stdout, done.stderr
    assert "limit 32.00 MiB" in done.stdout


def test_peers_without_a_copy_of_their_own_go_through_the_host(tmp_path):
    done = run(
        """
        import torch
        host = torch.randn(40, 30)
        a = host.to("gapless:0")
        b = torch.zeros(40, 30, device="gapless:1")
        for _ in range(20):
            a.add_(1)
            b.copy_(a)
            a.mul_(1)
            host.add_(1)
        assert torch.equal(b.cpu(), host)
        assert torch.equal(a.t()[1:].to("gapless:1", torch.float64).cpu(), host.t()[1:].double())
        print("equal")
        """,
        GAPLESS_DRIVER=str(compiled(tmp_path, "-DDEVICES=2")),
    )
    assert done.stdout == "equal\n", done.stderr
