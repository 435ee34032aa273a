"""``python -m kvorum`` is the ``kvorum`` command."""

import sys

from kvorum.cli import main

sys.exit(main())
