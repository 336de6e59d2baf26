"""Placeholder"""
from __future__ import annotations
def render(run,baseline=None,fuzz=None): return ""
def load_fuzz(p): return None
