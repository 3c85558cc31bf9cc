"""`python -m conductor`."""

import sys

from conductor.cli.app import main

sys.exit(main())
