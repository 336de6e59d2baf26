"""Commands for developers of this repository; run one as `python -m scripts.NAME`."""
