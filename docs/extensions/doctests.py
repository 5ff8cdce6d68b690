"""Doctests of docstrings, shown as code: Markdown takes `>>>` for a quotation within a quotation."""

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fences each paragraph of a docstring that begins with `>>>`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object, before it is parsed."""
        if obj.docstring:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(f"```pycon\n{p}\n```" if p.startswith(">>>") else p for p in paragraphs)
