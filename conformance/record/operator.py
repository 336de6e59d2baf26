"""The name of results of `conformance operator`. This module must not import torch."""

from __future__ import annotations

OPERATOR = "operator"
"""The name of the command, of its files, and of the layout of its results."""
