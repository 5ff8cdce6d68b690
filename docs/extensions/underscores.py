"""Emphasis is written with asterisks alone: in formulas such as Σ_{v<w} ‖Z_v‖_F an underscore begins a subscript."""

from typing import Any

from markdown import Extension, Markdown


class Underscores(Extension):
    """Takes the emphasis by underscores out of Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Deregister its pattern."""
        md.inlinePatterns.deregister("em_strong2", strict=False)  # the page and what it runs are converted alike


def on_config(config: Any) -> None:
    """Add the extension when the site is built."""
    config.markdown_extensions.append(Underscores())
