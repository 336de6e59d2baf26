"""Settings for every test: Hypothesis without a clock.

A kernel that is compiled afresh makes one example a hundred times slower than the next, so Hypothesis's own deadline
would report the compiler; pytest's time limit for each test stands instead.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("conformance", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("conformance")
