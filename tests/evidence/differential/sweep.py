"""Lists what is worse than on stock, by transformation and rule.

``sweep.py 1000 0 adam lion`` draws 1,000 examples with seed 0 for these, or for all if none is
named; ``sweep.py '{"name": ...}'`` runs one spec, as a failing test shows it.
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
    import rules
    import specs
    from workers import Workers

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
