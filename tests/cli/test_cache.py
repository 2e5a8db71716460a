import fcntl
import json
import os

import pytest
from typer.testing import CliRunner

from gapless.cache import obtain
from gapless.cli import build_app


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("GAPLESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def filled(root):
    def build(size):
        return lambda folder: (folder / "file.bin").write_bytes(b"x" * size)

    obtain("small-model", {"package": "weights 1"}, build(1_000_000), print, root)
    for number, key in enumerate(("aaaa11", "aabb22", "cccc33")):
        source = {"key": key, "operands": f"float32[{number}]"}
        obtain(key, source, build(2_000_000), print, root / "programs")
        os.utime(root / "programs" / key, (1000 + number, 1000 + number))
    return root


def run(*arguments, code=0, **options):
    result = CliRunner().invoke(build_app(), ["cache", *arguments], **options)
    assert result.exit_code == code, result.output
    return result.output


def test_an_empty_cache_is_told(root):
    assert "nothing in" in run("list")
    assert json.loads(run("list", "--json")) == []
    assert run("verify") == "0 entries, 0 broken\n"
    assert run("clear") == "removed 0 entries\n"
    assert not root.exists()


def test_entries_are_listed(filled):
    text = run("list")
    assert "float32[2]" in text
    assert "weights 1" in text
    assert f"4 entries, 7.0 MB in {filled}" in text.replace("\n", "")
    listed = json.loads(run("list", "--json", "--kind", "program"))
    assert [each["name"] for each in listed] == ["cccc33", "aabb22", "aaaa11"]


def test_a_list_for_a_pipe_has_a_line_for_each_entry(root):
    operands = ", ".join(f"float32[{n}, 4096]" for n in range(40))
    source = {"key": "dddd", "operands": operands}
    obtain("d" * 32, source, lambda folder: (folder / "f").touch(), print, root / "programs")
    heads, entry, _ = run("list").splitlines()
    assert heads.split() == ["kind", "name", "MB", "used", "from"]
    assert entry.startswith("program  " + "d" * 32)
    assert "float32[0, 4096], float32[1" in entry
    assert len(entry) <= 100
    assert json.loads(run("list", "--json"))[0]["source"]["operands"] == operands


def test_a_broken_entry_is_found(filled):
    assert run("verify").endswith("4 entries, 0 broken\n")
    (filled / "programs" / "aabb22" / "file.bin").write_bytes(b"y" * 2_000_000)
    (filled / "programs" / "cccc33" / "manifest.json").write_text("{")
    text = run("verify", code=1)
    assert "program aabb22: the checksum of file.bin is wrong" in text
    assert "program cccc33: its manifest cannot be read" in text
    assert "model small-model: whole" in text
    assert text.endswith("4 entries, 2 broken\n")
    assert "unknown: its manifest cannot be read" in run("list")


def test_clearing_asks_and_keeps_what_was_not_named(filled):
    assert "this would remove 4 entries, 7.0 MB; say --yes" in run("clear", code=2)
    assert run("clear", "aa", "--yes") == "removed 2 entries\n"
    assert sorted(path.name for path in (filled / "programs").glob("[!.]*")) == ["cccc33"]
    assert "no program whose name begins with 'zz'" in run(
        "clear", "zz", "--kind", "program", "-y", code=2
    )
    assert "--kind disk is not one of model, program" in run("clear", "--kind", "disk", code=2)
    assert run("clear", "-y", "--kind", "program") == "removed 1 entries\n"
    assert (filled / "small-model").exists()


def test_what_is_being_built_is_kept(filled):
    with (filled / "programs" / ".cccc33.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = run("clear", "-y", "cccc33")
    assert "program cccc33: kept, another process is building it" in text
    assert (filled / "programs" / "cccc33").exists()


def test_a_folder_that_others_may_write_to_is_refused(filled):
    filled.chmod(0o777)
    assert "others may write to it" in run("list", code=1)


def test_warming_runs_the_program_and_passes_its_arguments_and_code_on(root, tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint(os.environ['GAPLESS_COMPILE'], sys.argv[1:])\nsys.exit(3)\n"
    )
    run("warm", str(script), "--steps", "4", code=3)
    assert "wait ['--steps', '4']" in capfd.readouterr().out
