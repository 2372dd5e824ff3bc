"""Stand in for sentencepiece: a token for each character."""

from __future__ import annotations

_SPECIAL = 3
"""pad, bos and eos."""


class SentencePieceProcessor:
    """The part that nanodo uses, by the names of sentencepiece."""

    def Load(self, _: str) -> None:  # noqa: N802
        """Load nothing."""

    def GetPieceSize(self) -> int:  # noqa: N802
        """Return the number of tokens."""
        return 128 + _SPECIAL

    def EncodeAsIds(self, text: str) -> list[int]:  # noqa: N802
        """Return the tokens of a text in ASCII."""
        return [ord(character) + _SPECIAL for character in text]

    def pad_id(self) -> int:
        """Return the token after a text."""
        return 0

    def bos_id(self) -> int:
        """Return the first token of a text."""
        return 1

    def eos_id(self) -> int:
        """Return the last token of a text."""
        return 2
