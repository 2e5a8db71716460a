"""A child process that checks the operators named on its standard input, one line of JSON each."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import Any


def check(name: str, dtypes: list[str], limit: int) -> dict[str, Any]:
    """All outcomes of one operator, and why it left the asynchronous path, if it did."""
    import torch

    from .catalogue import dtypes_of, operators
    from .checks import check_operator

    op = operators()[name]
    torch.gapless.departures.reset()
    outcomes = []
    for dtype in dtypes_of(op, tuple(getattr(torch, dtype) for dtype in dtypes)):
        outcomes += [asdict(outcome) for outcome in check_operator(op, dtype, limit)]
    return {
        "operator": name,
        "outcomes": outcomes,
        "departures": {d.operation: d.reason for d in torch.gapless.departures.counts()},
    }


def main() -> None:
    """Answer until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtypes", required=True)
    parser.add_argument("--samples", type=int, required=True)
    options = parser.parse_args()
    # What operators print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    from .catalogue import operators

    torch.set_num_threads(1)  # as many as the device has, so that sums are split alike
    torch.ones(1, device="gapless")
    operators()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        result = check(line.strip(), options.dtypes.split(","), options.samples)
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
