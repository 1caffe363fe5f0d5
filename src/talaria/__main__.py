"""`python -m talaria`."""

import sys

from talaria.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
