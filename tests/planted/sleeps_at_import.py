"""A module whose import takes longer than a test may take."""

import time

time.sleep(1000)
