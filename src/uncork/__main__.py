import sys

from uncork.cli import main


sys.exit(main())
