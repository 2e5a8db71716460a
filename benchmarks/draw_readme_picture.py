"""Record the demo's batch of one in both modes and draw the picture of the README from it."""

from pathlib import Path

import torch

from gapless.cli.in_process_demo import copy_to, run_batch
from gapless.cli.status import stderr_console, working
from gapless.models.load import load_model
from gapless.models.smollm2 import obtain_smollm2
from gapless.pipeline.device_choice import choose_device
from gapless.profile.picture import draw

_PICTURE = Path(__file__).parents[1] / "docs" / "gaps.svg"
_TOKENS = 48
_HOST_WORK_US = 400


def main() -> None:
    """Run, and write ``docs/gaps.svg``."""
    console = stderr_console()
    device = choose_device("gapless")
    with working(console, "loading the model") as notify:
        reference = load_model(obtain_smollm2(notify), torch.device("cpu"), "auto")
        on_device = copy_to(reference.model, device)
    rows = run_batch(console, reference, on_device, 1, _TOKENS, _HOST_WORK_US, is_shown=False)
    draw(
        _PICTURE,
        [(row.mode, row.figures.timeline) for row in rows if row.figures.timeline is not None],
    )
    console.print(f"wrote {_PICTURE}", markup=False)


if __name__ == "__main__":
    main()
