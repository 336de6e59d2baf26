"""A module whose import takes 100 seconds."""

import time

time.sleep(100)
