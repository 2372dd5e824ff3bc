"""The public programs that ``public_programs.py`` trains, and the revisions of their clones."""

from __future__ import annotations

from pathlib import Path

from published.images import IMAGES
from published.others import OTHERS
from published.program import WAYS, Program, code_of
from published.text import TEXT

__all__ = ["CLONES", "LIBRARIES", "PROGRAMS", "WAYS", "Program", "code_of"]

CLONES = {
    "dm-haiku": ("google-deepmind/dm-haiku", "f4d858a5cbb29140855d68f81f5fd625e078a5ae"),
    "flax": ("google/flax", "18f8f311c275d57f46d95e41b15aa97b454754c0"),
    "nanodo": ("google-deepmind/nanodo", "10aefdeed40a63293daf112b91a5538cd24fa3a4"),
    "purejaxrl": ("luchris429/purejaxrl", "31756b197773a52db763fdbe6d635e4b46522a73"),
    "distrax": ("google-deepmind/distrax", "f51bffcf9094d269a0be8678762dd2849833c8b7"),
    "equinox": ("patrick-kidger/equinox", "9336d820b2ef66b360fc6cb3611b3da5cefbb14d"),
    "diffrax": ("patrick-kidger/diffrax", "5ea5fcb05058bd22548300a10ea5ef5ce7fb75bb"),
    "numpyro": ("pyro-ppl/numpyro", "0b935d488056ae1775b4ab05cbe2812f51f21a4f"),
}
"""For each clone: its repository on GitHub, and the revision."""

LIBRARIES = [
    line.partition("<")[0]
    for line in Path(__file__).with_name("requirements.txt").read_text("utf-8").split()
]
"""What the programs import, beside the installed package."""

PROGRAMS = {program.name: program for program in (*TEXT, *IMAGES, *OTHERS)}
