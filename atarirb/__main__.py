"""``python -m atarirb``."""

import sys

from atarirb.cli import main

sys.exit(main())
