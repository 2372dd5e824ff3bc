"""The tested releases of optax, and what runs on each: the only table of releases in the project.

The package, ``noxfile.py``, ``.ci/run``, the tests and the pages read it. A release has one row:

- ``jax``: its version of jax and jaxlib, and packages that must be held back. The newest row has
  the newest jax for Python 3.11, on which all sessions but those of other Pythons run. On Python
  3.12 and later, pip installs a newer jax, which ``engine`` and ``python`` test.
- ``needs_its_jax``: it cannot be imported with the jax of the newest release.
- ``ci``: ``.ci/run`` tests this release, on its jax and on the newest. Together, these releases run
  every fault and every variant of a replacement, and none of them can be left out:
  ``tests/patches/test_releases.py`` says so.
- ``all_patches``: the session of this name runs all tests of the patches. They also run on the
  oldest and on the newest release.
- ``python``: other Pythons whose session tests this release.
- ``audit``: all audit tests and fuzzing run, and ``docs/audit.md`` shows this release.
- ``mutants``: mutants run, and ``docs/upstream.md`` shows this release.
- ``downstream``: the libraries that use optax are tested, with these pins.
- ``upstream``: optax's own tests run; they need these packages.
"""

from __future__ import annotations

_NUMPY_1 = ("numpy<2", "scipy<1.13")

RELEASES: dict[str, dict[str, tuple[str, ...]]] = {
    "0.1.2": {"jax": ("0.4.13", *_NUMPY_1), "needs_its_jax": (), "ci": ()},
    "0.1.3": {"jax": ("0.4.13", *_NUMPY_1), "needs_its_jax": ()},
    "0.1.4": {"jax": ("0.4.13", *_NUMPY_1), "needs_its_jax": ()},
    "0.1.5": {"jax": ("0.4.13", *_NUMPY_1)},
    "0.1.7": {"jax": ("0.4.20", *_NUMPY_1), "ci": ()},
    # 0.4.23, the matching jax, crashes on CPUs that compute in float16.
    "0.1.8": {"jax": ("0.4.25", *_NUMPY_1), "ci": ()},
    "0.1.9": {
        "jax": ("0.4.25", *_NUMPY_1),
        "all_patches": (),
        "python": ("3.9", "3.10"),
        "audit": (),
        "upstream": ("dm-haiku<0.0.13", "dm-tree", "flax<0.8.3"),
    },
    "0.2.0": {"jax": ("0.4.25", *_NUMPY_1)},
    "0.2.1": {"jax": ("0.4.25", *_NUMPY_1)},
    "0.2.2": {"jax": ("0.4.26", *_NUMPY_1), "python": ("3.12",)},
    "0.2.3": {
        "jax": ("0.4.31",),
        "ci": (),
        "all_patches": (),
        "audit": (),
        "mutants": (),
        "downstream": (
            *("flax<0.10", "equinox<0.11.9", "optimistix<0.0.9", "orbax-checkpoint<0.7"),
            *("dm-haiku<0.0.13", "numpyro<0.16"),
        ),
        "upstream": ("flax<0.10",),
    },
    "0.2.4": {"jax": ("0.4.35",), "ci": (), "python": ("3.13",), "upstream": ("flax",)},
    "0.2.5": {"jax": ("0.6.2",), "all_patches": ()},
    "0.2.6": {"jax": ("0.7.2",), "ci": (), "upstream": ("flax",)},
    "0.2.7": {"jax": ("0.9.0",), "needs_its_jax": (), "upstream": ("flax",)},
    "0.2.8": {
        "jax": ("0.10.2",),
        "ci": (),
        "audit": (),
        "mutants": (),
        "downstream": (),
        "upstream": ("flax",),
    },
}
"""By release, the oldest first. The table of each patch was verified on these, fault by fault."""

TESTED = tuple(RELEASES)
