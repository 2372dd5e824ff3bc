"""Find the file of a report, and replace files as a whole."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# As root, we could replace /dev/null by a report.
_NO_FILES = ("/dev", "/dev/fd", "/proc/self/fd")


def find_file(path: str) -> str:
    """Return the file to write: ``%p`` is the process id, ``%h`` the host, and links are followed.

    Raises:
      OSError: it cannot be written; the message says why. A link on the way may belong to another
        user, who may have put it there to make us overwrite a file.
    """
    if "%h" in path:
        import platform  # Not at the top: few paths need it.

        path = path.replace("%h", platform.node())
    path = path.replace("%p", str(os.getpid()))
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder}")
    if os.path.exists(path) and (folder in _NO_FILES or not os.path.isfile(path)):
        raise OSError("it is not a regular file")
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)  # Links may form a circle.
    trusted = (0, os.geteuid()) if hasattr(os, "geteuid") else ()  # `/tmp` is one of root on macOS.
    for link in _links_on(path) if trusted else ():
        owner = os.lstat(link).st_uid
        if owner not in trusted:
            raise PermissionError(0, f"{link} is a link of another user (uid {owner})")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"no permission to write in {folder}")
    return os.path.realpath(path)


def _links_on(path: str) -> Iterator[str]:
    """Yield the links on the way to a file, and those on the ways of these links."""
    folder = os.path.dirname(path)
    if os.path.islink(path):
        yield path
        yield from _links_on(os.path.join(folder, os.readlink(path)))
    if folder != path:
        yield from _links_on(folder)


def replace_file(path: str, text: str, mode: int | None = None) -> None:
    """Replace a file as a whole: a reader, or another process, never sees half of it.

    Args:
      path: the file.
      text: what to write.
      mode: the mode of the new file; None keeps the mode and the owner of the old one.

    Raises:
      OSError: the file cannot be written, or its owner cannot be kept.
    """
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            if mode is not None:
                os.chmod(temporary, mode)
            elif os.name == "posix" and os.path.exists(path):
                _copy_owner_and_mode(os.stat(path), file.fileno())
            file.write(text)
        os.replace(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.remove(temporary)


def _copy_owner_and_mode(original: os.stat_result, file: int) -> None:
    """Give an open file the owner, group and mode of another one. By number: names may change."""
    new = os.fstat(file)
    try:
        if (original.st_uid, original.st_gid) != (new.st_uid, new.st_gid):
            os.chown(file, original.st_uid, original.st_gid)
        if original.st_mode != os.fstat(file).st_mode:
            os.chmod(file, stat.S_IMODE(original.st_mode))
    except PermissionError as error:
        owner = f"uid {original.st_uid}, gid {original.st_gid}"
        raise PermissionError(0, f"it belongs to another user ({owner})") from error
