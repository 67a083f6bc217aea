"""`kvswarm` on a host whose clock is so many seconds ahead.

Called as `early_clock.py SECONDS run --worker …`.
"""

import sys
import time

real_time, ahead_s = time.time, float(sys.argv.pop(1))
time.time = lambda: real_time() + ahead_s

from loadgen.cli.main import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
