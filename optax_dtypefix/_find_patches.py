"""Import ``patches``: an installation has it inside this folder, a clone beside it.

It is looked for there before anywhere else. With an editable installation of another clone, Python
would find the patches of that one.
"""

import os

from . import __path__ as folders

folders.append(os.path.dirname(folders[0]))
try:
    from . import patches  # noqa: F401
finally:
    folders.pop()
