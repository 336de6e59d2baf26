"""Corrections of tinygrad, each a record of the site, the versions, the upstream issue and the test that shows it."""
