"""Generated parts of pages: the lines between two comments are replaced, and a stale page is reported."""

from __future__ import annotations

import pytest

from scripts.pages import PageError, Part

PART = Part("docs/a.md", "a_script")


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a page that has an old part."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(f"# A\n\n{PART.begin}\n\nold\n\n{PART.end}\n\nThe end.\n")
    return tmp_path


def test_only_the_part_is_replaced(checkout):
    """The text around the part stays, and a second time changes nothing."""
    assert PART.renew("new", root=checkout) == 0
    text = (checkout / "docs" / "a.md").read_text()
    assert (
        text.startswith("# A\n\n") and text.endswith("\n\nThe end.\n") and "\n\nnew\n\n" in text and "old" not in text
    )
    assert PART.replaced(text, "new") == text


def test_a_stale_page_is_reported(checkout, capsys):
    """The check returns 1 and the command, writes nothing, and passes after the command has run."""
    before = (checkout / "docs" / "a.md").read_text()
    assert PART.renew("new", check=True, root=checkout) == 1
    assert capsys.readouterr().err == "docs/a.md is stale; run python -m scripts.a_script\n"
    assert (checkout / "docs" / "a.md").read_text() == before
    PART.renew("new", root=checkout)
    assert PART.renew("new", check=True, root=checkout) == 0


@pytest.mark.parametrize("line", [PART.begin, PART.end])
def test_a_page_without_a_place_is_refused(line, checkout):
    """A page without one of the two comments is an error that names it."""
    page = checkout / "docs" / "a.md"
    page.write_text(page.read_text().replace(line, ""))
    with pytest.raises(PageError, match=r"^docs/a\.md lacks the line '<!-- .* put both where the part belongs$"):
        PART.renew("new", root=checkout)
