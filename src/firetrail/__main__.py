"""``python -m firetrail``: the command line, for environments without the ``firetrail`` script."""

import sys

from firetrail.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
