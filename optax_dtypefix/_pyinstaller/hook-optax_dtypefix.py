"""What PyInstaller cannot see: the patches, loaded by name, and the versions that we report."""  # noqa: N999

from PyInstaller.utils.hooks import (  # type: ignore[import-untyped]
    collect_submodules,
    copy_metadata,
)

# In an editable installation the patches are elsewhere.
hiddenimports = [
    *collect_submodules("optax_dtypefix"),
    *collect_submodules("optax_dtypefix.patches"),
]
datas = [*copy_metadata("jax"), *copy_metadata("optax")]
