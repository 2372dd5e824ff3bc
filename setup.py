"""Give the package README.md with absolute links: on a package index, relative ones are broken."""

import re
from pathlib import Path


def read(name: str) -> str:
    """Return the text of a file of this folder."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def absolute(text: str, repository: str) -> str:
    """Make relative links and pictures lead to the files of the repository."""
    text = text.replace("](.)", f"]({repository})")
    kinds = ((r"(!\[[^\]]*\]\()", "raw"), (r"((?<!!)\[[^\]]*\]\()", "blob"))
    for start, kind in kinds:
        text = re.sub(rf"{start}(?!https?:|#)", rf"\1{repository}/{kind}/main/", text)
    return text


if __name__ == "__main__":
    from setuptools import setup

    (repository,) = re.findall(r'^Repository = "(.*)"$', read("pyproject.toml"), re.MULTILINE)
    description = absolute(read("README.md"), repository)
    setup(long_description=description, long_description_content_type="text/markdown")
