"""List what is worse than on stock, by transformation and rule.

In ``tests/``, ``python -m evidence.differential.sweep 1000 0 adam lion`` draws 1,000 examples
of these transformations with seed 0; without names, of all. ``python -m evidence.differential.sweep
'{"name": ...}'`` runs one spec, as a failing test prints it.
"""

from __future__ import annotations

import collections
import json
import random
import sys
import time
import warnings


def main(first: str, seed: str = "0", *only: str) -> None:
    warnings.simplefilter("ignore")
    from evidence.differential import rules, specs
    from evidence.differential.workers import Workers

    workers = Workers()
    if first.startswith("{"):
        print(*rules.broken(json.loads(first), workers))
        return
    rng = random.Random(int(seed))
    names = only or specs.names()
    outcomes: dict[str, int] = collections.Counter()
    counts: dict[tuple[str, ...], int] = collections.Counter()
    start = time.time()
    for number in range(1, int(first) + 1):
        spec = specs.drawn(rng.choice, names)
        outcome, broken = rules.broken(spec, workers)
        outcomes[outcome.partition(":")[0]] += 1
        if broken:
            inside = f" in {spec['wrapper']}" if spec["wrapper"] else ""
            key = (spec["name"], inside, broken[0].partition(":")[0])
            counts[key] += 1
            if counts[key] == 1:
                print(f"- {spec['name']}{inside}: {broken[0]}\n  `{json.dumps(spec)}`", flush=True)
        if number % 50 == 0:
            done = f"{number} in {time.time() - start:.0f} s, {sum(counts.values())} worse"
            print(done, dict(outcomes), file=sys.stderr, flush=True)
    workers.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
