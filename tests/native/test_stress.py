"""The runtime under sanitizers, briefly; ``make sanitize`` runs the same for a minute each."""

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_stress_is_clean(sanitizers, tmp_path):
    program = tmp_path / "stress"
    subprocess.run([HERE / "build.sh", sanitizers, program], check=True)
    done = subprocess.run([program, "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "each reported once" in done.stdout
