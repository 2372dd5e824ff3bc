"""Give the package its description and its addresses, and build it in an empty folder.

Only a release knows the addresses. ``release.yml`` names its own repository in the variable
``PACKAGE_REPOSITORY``, such as ``https://github.com/owner/name``. Without it, the package has no
addresses, and the links in its description stay relative, as those of README.md are.
"""

import hashlib
import json
import os
import re
import tempfile
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


def site(repository: str) -> str:
    """Return the address of the pages of a repository."""
    _, owner, name = repository.rsplit("/", 2)
    return f"https://{owner.lower()}.github.io/{name}/"


def addresses(repository: str) -> dict[str, str]:
    """Return what a package index shows beside the description."""
    return {
        "Documentation": site(repository),
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }


def list_files(package: Path) -> None:
    """Write the digest of each file of a package into it: an installation knows its files by it."""
    files = (path for path in package.rglob("*") if path.is_file())
    listed = {path.relative_to(package).as_posix(): path.read_bytes() for path in files}
    digests = {name: hashlib.sha256(listed[name]).hexdigest() for name in sorted(listed)}
    (package / "files.json").write_text(json.dumps(digests, indent=1), encoding="utf-8")


if __name__ == "__main__":
    from setuptools import setup
    from setuptools.command.build_py import build_py

    class BuildAndList(build_py):
        """Copy the files of the package, and list them."""

        def run(self) -> None:
            """Build. An editable installation has the files of the clone, which change."""
            super().run()
            if not self.editable_mode:
                list_files(Path(self.build_lib, "optax_dtypefix"))

    repository = os.environ.get("PACKAGE_REPOSITORY", "")
    description = read("README.md")
    # A wheel takes all that lies in the build folder. `build/` of a clone has the files of the
    # version that was installed from it before.
    with tempfile.TemporaryDirectory() as folder:
        setup(
            long_description=absolute(description, repository) if repository else description,
            long_description_content_type="text/markdown",
            project_urls=addresses(repository) if repository else {},
            cmdclass={"build_py": BuildAndList},
            options={"build": {"build_base": folder}},
        )
