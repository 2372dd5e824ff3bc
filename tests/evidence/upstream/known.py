"""Tests of optax that assert a fault: with the shim they have to fail."""

from __future__ import annotations

import dataclasses

from packaging.specifiers import SpecifierSet


@dataclasses.dataclass(frozen=True)
class Known:
    """A test that cannot pass with the shim.

    Attributes:
      test: end of the name, as in ``AccumulationTest::test_name``; parameters may follow.
      releases: PEP 440 specifiers of the releases of optax with this test.
      why: the fault that the test asserts.
    """

    test: str
    releases: str
    why: str

    def concerns(self, release: str) -> bool:
        """Whether the release of optax has this test."""
        return release in SpecifierSet(self.releases)

    def covers(self, name: str) -> bool:
        """Whether the name is that of this test, with any parameters."""
        return self.test in name


KNOWN = (
    Known(
        "GaLoreTest::test_mu_dtype_controls_moment_dtype",
        ">=0.2.7",
        "second moments in bfloat16, which stall: the opt-in patch float32_moments widens them",
    ),
    *(
        Known(
            f"AliasTest::test_explicit_dtype{case}",
            ">=0.2.4",
            f"the {moment} in bfloat16, which stalls: the opt-in patch float32_moments widens it",
        )
        for case, moment in enumerate(("trace of sgd", "mu of adam", "mu of adamw"), 9)
    ),
    *(
        Known(
            f"AliasTest::test_explicit_dtype{case}",
            ">=0.2.4",
            f"the {moment} of complex params in bfloat16, which drops the imaginary part",
        )
        for case, moment in enumerate(("trace of sgd", "mu of adam", "mu of adamw"), 24)
    ),
)
