"""The table of declared differences in docs/PARITY.md: `python -m tests.contract.table` writes it anew."""

from __future__ import annotations

from pathlib import Path

from tests.contract.differences import DECLARED

PAGE = Path(__file__).parents[2] / "docs" / "PARITY.md"
HEAD = "| name | difference | reason |\n|---|---|---|\n"


def table() -> str:
    """The declared differences, one row each."""
    return HEAD + "".join(f"| {one.name} | {one.difference} | {one.reason} |\n" for one in DECLARED)


def table_on(page: str) -> str:
    """The table that stands on the page."""
    begin = page.index(HEAD)
    end = page.find("\n\n", begin)
    return page[begin:] if end < 0 else page[begin : end + 1]


def main() -> None:
    """Write the table into the page."""
    page = PAGE.read_text()
    PAGE.write_text(page.replace(table_on(page), table()))


if __name__ == "__main__":
    main()
