"""The runtime under ThreadSanitizer, briefly; ``make sanitize`` adds the others, for longer."""

import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def test_stress_is_clean(tmp_path):
    program = tmp_path / "stress"
    subprocess.run([HERE / "build.sh", "thread", program], check=True)
    done = subprocess.run([program, "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith(("gapless watchdog: ", "  ")) for line in lines), done.stderr
    assert "each reported once" in done.stdout
