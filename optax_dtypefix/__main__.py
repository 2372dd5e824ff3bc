"""Run the command line: ``python -m optax_dtypefix``."""

from ._commands.main import main

if __name__ == "__main__":
    raise SystemExit(main())
