"""`python -m tessera`, the same as the command `tessera`."""

from __future__ import annotations

from tessera.cli import main

if __name__ == "__main__":
    main()
