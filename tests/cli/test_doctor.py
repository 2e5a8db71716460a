import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from gapless.cli import checks, doctor, machine
from gapless.cli.diagnosis import Diagnosis, Section

GIB = 1 << 30


def problems(section):
    return [(problem.fails, problem.what) for problem in section.problems]


def facts(section):
    return {fact.name: fact.value for fact in section.facts}


@pytest.fixture
def plan(monkeypatch):
    """Replaces the plan of the cores."""

    def replace(answer):
        module = ModuleType("gapless.device.cores")
        module.plan = answer
        monkeypatch.setitem(sys.modules, "gapless.device.cores", module)

    return replace


@pytest.fixture
def sound(plan, monkeypatch):
    """A machine with nothing to complain about, but for what a test changes."""
    cores = SimpleNamespace(device_cores=(1,), host_cores=(0,), reason="the host keeps one")
    plan(lambda: cores)
    monkeypatch.setattr(machine, "allowed_cores", lambda: (0, 1))
    monkeypatch.setattr(machine, "cpu_quota", lambda: None)
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(16 * GIB, 8 * GIB, None))
    for name in [name for name in os.environ if name.startswith("GAPLESS_")]:
        monkeypatch.delenv(name)
    return cores


def test_cores(sound):
    section = checks.check_cores()
    assert problems(section) == []
    found = facts(section)
    assert (found["device"], found["host"], found["reason"]) == ((1,), (0,), "the host keeps one")


def test_a_wrong_choice_of_cores_fails(sound, plan):
    def refuse():
        raise ValueError("GAPLESS_DEVICE_CORES=999: there are 2 cores")

    plan(refuse)
    assert problems(checks.check_cores()) == [(True, "GAPLESS_DEVICE_CORES=999: there are 2 cores")]


def test_a_single_core_is_noted(sound, monkeypatch):
    sound.device_cores = sound.host_cores = (0,)
    monkeypatch.setattr(machine, "allowed_cores", lambda: (0,))
    [(fails, what)] = problems(checks.check_cores())
    assert not fails
    assert "share cores: 1 of at least 2" in what


def test_a_quota_below_the_cores_is_noted(sound, monkeypatch):
    monkeypatch.setattr(machine, "cpu_quota", lambda: 1.5)
    [(fails, what)] = problems(checks.check_cores())
    assert not fails
    assert "1.5 cores' time, and 2 are busy" in what


def test_too_little_memory_fails(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(16 * GIB, GIB // 2, GIB))
    section = checks.check_memory()
    [(fails, what)] = problems(section)
    assert fails
    assert what.startswith("0.5 GiB of memory are available")
    assert facts(section)["container_limit_bytes"] == GIB


def test_more_threads_than_cores_is_noted(monkeypatch):
    monkeypatch.setattr(machine, "allowed_cores", lambda: ())
    [(fails, what)] = problems(checks.check_threads())
    assert not fails
    assert "0 cores are allowed" in what


def test_no_compiler_is_noted(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/cxx")
    [(fails, what)] = problems(checks.check_processor())
    assert (fails, what) == (False, "no C++ compiler: /nowhere/cxx is not there")


@pytest.mark.parametrize("native", [(), ("avx512_bf16",)])
def test_bf16_is_told(monkeypatch, native):
    monkeypatch.setattr(machine, "processor", lambda: machine.Processor("cpu", native))
    assert facts(checks.check_processor())["native_bf16"] is bool(native)


@pytest.fixture
def versions(monkeypatch):
    there = {"gapless": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.24.0", "vllm": None}
    monkeypatch.setattr(checks, "_version", there.get)
    monkeypatch.setattr(checks, "_required", {"torch": "2.13.0"}.get)
    points = SimpleNamespace(names={"gapless"})
    monkeypatch.setattr(checks.importlib.metadata, "entry_points", lambda group: points)
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    monkeypatch.setattr(checks.machine, "is_compiled", lambda package: True)
    return there


def test_packages_that_fit(versions):
    section = checks.check_packages()
    assert problems(section) == []
    assert facts(section)["vllm"] is None
    assert facts(section)["autoload"] is True


@pytest.mark.parametrize(
    ("package", "version", "says"),
    [
        ("torch", "2.12.1", "torch is 2.12.1, and gapless was built for 2.13.0"),
        ("transformers", "5.9.3", "transformers is 5.9.3, and models need 5.10 or newer, below 6"),
        ("transformers", "6.0.0", "transformers is 6.0.0, and models need 5.10 or newer, below 6"),
        ("transformers", None, "transformers is missing, and models need 5.10 or newer, below 6"),
    ],
)
def test_packages_that_do_not_fit(versions, package, version, says):
    versions[package] = version
    assert problems(checks.check_packages()) == [(True, says)]


def test_code_that_is_compiled_at_each_start_is_noted(versions, monkeypatch):
    monkeypatch.setattr(checks.machine, "is_compiled", lambda package: False)
    section = checks.check_packages()
    [(fails, what)] = problems(section)
    assert not fails
    assert "PYTHONDONTWRITEBYTECODE" in what
    assert facts(section)["compiled"] is False


def test_autoload_that_is_off_is_noted(versions, monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    section = checks.check_packages()
    [(fails, what)] = problems(section)
    assert not fails
    assert what.startswith("TORCH_DEVICE_BACKEND_AUTOLOAD is 0")
    assert facts(section)["autoload"] is False


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("GAPLESS_CACHE", str(folder))
    return folder


def test_a_cache_that_is_not_there_yet_is_not_made(cache):
    section = checks.check_cache()
    assert problems(section) == []
    assert facts(section)["models"] == 0
    assert not cache.exists()


def test_models_in_the_cache_are_counted(cache):
    (cache / "model").mkdir(parents=True, mode=0o700)
    cache.chmod(0o700)
    (cache / "model" / "weights").write_bytes(bytes(3_000_000))
    (cache / ".model.lock").touch()
    section = checks.check_cache()
    assert problems(section) == []
    assert [fact.shown for fact in section.facts if fact.name == "models"] == ["1 models, 3 MB"]


def test_a_cache_that_is_a_file_fails(cache):
    cache.touch()
    assert problems(checks.check_cache()) == [(True, f"the cache {cache} is not a folder")]


def test_a_cache_that_others_may_write_to_fails(cache):
    cache.mkdir()
    cache.chmod(0o777)
    [(fails, what)] = problems(checks.check_cache())
    assert fails
    assert "others may write" in what


def test_a_full_disk_fails(cache, monkeypatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    [(fails, what)] = problems(checks.check_cache())
    assert fails
    assert "5 MB free, and the demo needs 400 MB" in what


def test_unknown_variables_are_noted(sound, monkeypatch):
    monkeypatch.setenv("GAPLESS_DEVCIE_CORES", "1")
    monkeypatch.setenv("GAPLESS_CACHE", "/somewhere")
    section = checks.check_environment()
    assert problems(section) == [
        (False, "GAPLESS_DEVCIE_CORES is set, and gapless does not read it")
    ]
    assert facts(section)["GAPLESS_CACHE"] == "/somewhere"


def found(*, fails):
    section = Section("subject")
    section.fact("size_bytes", 5, "5 B")
    section.fact("cores", (0, 1))
    section.problem("a note", "do this")
    if fails:
        section.problem("a failure", "do that", fails=True)
    return section


@pytest.mark.parametrize(("fails", "code"), [(False, 0), (True, 1)])
def test_exit_code_and_text(monkeypatch, capsys, fails, code):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: found(fails=fails),))
    assert doctor.run(json_output=False) == code
    text = capsys.readouterr().out
    assert "size" in text
    assert "0, 1" in text
    assert "note:  a note; do this" in text
    assert ("fails: a failure; do that" in text) == fails


def test_json(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: found(fails=True),))
    assert doctor.run(json_output=True) == 1
    assert json.loads(capsys.readouterr().out) == {
        "ok": False,
        "facts": {"subject": {"size_bytes": 5, "cores": [0, 1]}},
        "problems": [
            {"what": "a failure", "remedy": "do that", "fails": True},
            {"what": "a note", "remedy": "do this", "fails": False},
        ],
    }


def test_nothing_to_complain_about(capsys):
    doctor.print_diagnosis(Diagnosis(()))
    assert "nothing to complain about" in capsys.readouterr().out


def test_a_check_that_breaks_does_not_hide_the_others():
    def check_weather():
        raise OSError("no sky\nmore")

    diagnosis = doctor.diagnose((check_weather, lambda: found(fails=False)))
    assert [section.title for section in diagnosis.sections] == ["weather", "subject"]
    assert diagnosis.problems[0].what == "looking at the weather failed: OSError: no sky"
    assert not diagnosis.is_ok


def test_a_problem_that_two_checks_find_is_told_once():
    same = [Section("one"), Section("two")]
    for section in same:
        section.problem("GAPLESS_DEVICE_CORES=999: give fewer", fails=True)
    [problem] = Diagnosis(tuple(same)).problems
    assert str(problem) == "GAPLESS_DEVICE_CORES=999: give fewer"


def test_the_table_of_variables_is_the_readme_s():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    listed = re.findall(r"^\| `(GAPLESS_\w+)` \|", readme, re.M)
    assert listed == list(checks.ENVIRONMENT)
