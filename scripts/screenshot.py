"""Take pictures of a report in headless Chromium: light, dark, phone, print; `--readme` makes the README's picture.

Usage: ``python scripts/screenshot.py reports/conformance.html FOLDER`` or ``... --readme docs/images/report.png``.
The browser is Debian's `chromium` or any Chrome on the PATH; the tests of the page use the same function to start it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no Chromium on the PATH: `apt-get install chromium` provides one, and `pip install playwright` drives it"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
    "print": {"viewport": {"width": 794, "height": 1123}},
}


def executable() -> str | None:
    """Path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Running headless browser of Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def take(browser: Any, page_file: Path, look: str, output: Path, fragment: str = "", whole: bool = True) -> None:
    """Write one picture of the page as a PNG."""
    page = browser.new_page(**LOOKS[look])
    page.goto(page_file.resolve().as_uri() + fragment)
    if look == "print":
        page.emulate_media(media="print")
    page.screenshot(path=output, full_page=whole)
    page.close()


def main() -> int:
    """Take the pictures; return 2 if there is no browser or no report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path, help="a report, such as reports/conformance.html")
    parser.add_argument("output", type=Path, help="a folder, or with --readme a PNG file")
    parser.add_argument("--readme", action="store_true", help="one small picture of the top of the page")
    parser.add_argument("--fragment", default="", help="what to open, for example '#outcome=FAIL'")
    args = parser.parse_args()
    if executable() is None or not args.page.is_file():
        print(f"screenshot: {MISSING if executable() is None else f'{args.page} is no file'}", file=sys.stderr)
        return 2
    folder = args.output.parent if args.readme else args.output
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        if args.readme:
            take(browser, args.page, "light", args.output, args.fragment, whole=False)
        else:
            for look in LOOKS:
                take(browser, args.page, look, folder / f"{look}.png", args.fragment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
