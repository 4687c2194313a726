"""``python -m firetrail``: the command line, for environments without the ``firetrail`` script."""

import sys

from firetrail_command import main

if __name__ == "__main__":
    sys.exit(main())
