"""Check the dtype contract on every public transformation of the installed optax. Takes minutes.

Each transformation is measured in all regimes of dtypes and modes, with four kinds of learning
rate, alone and inside MultiSteps, apply_if_finite and inject_hyperparams, on stock and on patched
optax. Exits with 1 if a cell is broken that is not broken by design. Run ``python -m evidence.audit
[--json] [--record FILE] [--only NAME ...]`` in ``tests/``.

``regimes`` lists the dtypes and modes, ``cases`` finds the transformations, ``measure`` checks one
case in one regime, ``process`` checks all cases in a worker process, ``known_exceptions`` lists
what is broken by design, ``results`` compares the processes, ``record`` cuts the result to what
pages show, and ``picture`` draws it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evidence.audit.record import summarize
from evidence.audit.results import audit
from optax_dtypefix._diagnosis.import_optax import NoOptaxError
from support.recorded import write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--record", metavar="FILE", type=Path, help="write what pages show")
    parser.add_argument("--only", metavar="NAME", nargs="+", default=(), help="such as adam")
    options = parser.parse_args()
    try:
        found = audit(options.only)
    except (NoOptaxError, LookupError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    print(found.as_json() if options.json else found.as_text(), flush=True)
    if options.record:
        write(summarize(found.as_dict()), options.record)
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main())
