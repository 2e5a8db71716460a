import pytest

from gapless.cli.outputs import require_writable
from gapless.errors import UsageError


def test_what_can_be_written_is_accepted_and_not_created(tmp_path):
    require_writable(tmp_path / "new.json", "--json")
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "old.json").write_text("{}")
    require_writable(tmp_path / "old.json", "--json")


@pytest.mark.parametrize(
    ("name", "why"), [("", "is a folder"), ("missing/x.json", "the folder .*missing is not there")]
)
def test_what_cannot_is_refused_by_option_and_path(tmp_path, name, why):
    with pytest.raises(UsageError, match=f"--json .*{why}"):
        require_writable(tmp_path / name, "--json")
