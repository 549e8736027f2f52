"""A page of HTML as tests look at it: text, tags, the cells of each table's row, images; every element is closed."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "img"}


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def attributes(self) -> list[tuple[str, str, str | None]]:
        """Tag, name and value of each."""
        return [(tag, name, value) for tag, attributes in self.tags for name, value in attributes.items()]

    @property
    def images(self) -> list[str]:
        return [value or "" for tag, name, value in self.attributes if (tag, name) == ("img", "src")]
