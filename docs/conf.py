"""Sphinx settings: Markdown pages, every broken link a warning, and `nox -s docs` fails on warnings."""

from __future__ import annotations

project = "conformance"
author = "The conformance authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build", "upstream/*/*.md"]
html_theme = "furo"
html_title = "conformance"
myst_heading_anchors = 3
nitpicky = True
# Notes are linked from their index only. tests/test_docs.py checks that all are.
suppress_warnings = ["toc.not_included"]
