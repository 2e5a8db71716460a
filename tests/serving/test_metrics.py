"""The engine's page and what the server makes of it."""

import os
import subprocess
import sys

import pytest

from gapless.serving import metrics_page
from gapless.serving.metrics_page import FOLDER_VARIABLE, MetricsPage, metrics_folder, read_pages


def test_what_is_written_is_read(tmp_path):
    page = MetricsPage(tmp_path / f"engine-{os.getpid()}.page")
    page.name("a model", "gapless:0")
    page.set("running_requests", 3)
    page.add("tokens", 5)
    page.add("tokens", 6)
    page.count_wait("grammar")
    for gap_us in (5.0, 50.0, 5e6):
        page.count_gap(gap_us)
    [values] = read_pages(tmp_path)
    assert (values.engine, values.model, values.device) == (
        str(os.getpid()),
        "a model",
        "gapless:0",
    )
    numbers = values.numbers
    assert (numbers["running_requests"], numbers["tokens"], numbers["waits_grammar"]) == (3, 11, 1)
    assert (numbers["gaps_le_10"], numbers["gaps_le_100"], numbers["gaps"]) == (1, 2, 3)


def test_pages_of_ended_engines_and_broken_ones_are_left_out(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    MetricsPage(tmp_path / f"engine-{ended.pid}.page")
    (tmp_path / f"engine-{os.getpid()}.page").write_bytes(b"short")
    (tmp_path / "engine-nobody.page").write_bytes(b"")
    assert not list(read_pages(tmp_path))


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(file))
    with pytest.raises(ValueError, match=f"{FOLDER_VARIABLE}={file}: .*; name a folder"):
        metrics_folder()


def test_what_a_killed_server_left_is_removed(tmp_path, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f"gapless-metrics-{ended.pid}-x"
    alive = tmp_path / f"gapless-metrics-{os.getpid()}-x"
    for folder in (left, alive):
        folder.mkdir()
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(metrics_page.tempfile, "tempdir", str(tmp_path))
    made = metrics_folder()
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert made.parent == tmp_path
    assert not left.exists()
    assert alive.exists()


def test_metrics_of_an_engine(tmp_path):
    metrics = pytest.importorskip("gapless.serving.metrics", reason="no prometheus_client")
    page = MetricsPage(tmp_path / f"engine-{os.getpid()}.page")
    page.name("m", "gapless:0")
    page.count_gap(20.0)
    page.add("busy_us", 80)
    page.add("elapsed_us", 100)
    families = {family.name: family for family in metrics.EngineCollector(tmp_path).collect()}
    [busy] = families["gapless_busy_ratio"].samples
    assert busy.value == 0.8
    assert busy.labels == {"model_name": "m", "device": "gapless:0", "engine": str(os.getpid())}
    gaps = {
        sample.labels.get("le"): sample.value
        for sample in families["gapless_idle_gap_seconds"].samples
    }
    assert (gaps["1e-05"], gaps["3e-05"], gaps["+Inf"]) == (0, 1, 1)
