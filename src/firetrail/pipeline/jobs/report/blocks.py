"""The components of Firetrail's HTML pages; each page is a single self-contained file."""

from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template

_FINE = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="11" '
    'fill="currentColor" opacity=".16"/><path d="M7 12.5l3.4 3.4L17.2 8.9" fill="none" '
    'stroke="currentColor" stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round"/>'
    "</svg>"
)


def page(
    *,
    brand: str,
    head: str,
    subtitle: str,
    tiles: Iterable[str],
    sections: Iterable[str],
    store: str,
    created: datetime,
    note: str,
) -> str:
    """Return a page about a store; ``brand`` is the kind of page and ``head`` the store's name."""
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    when = created.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return template.substitute(
        title=escape(f"{head} · {brand}"),
        brand=escape(brand),
        store=escape(head),
        subtitle=escape(subtitle),
        tiles="".join(tiles),
        sections="\n".join(sections),
        footer=f"Created by Firetrail {version('firetrail')} on {when} from "
        f"<code>{escape(store)}</code>. {escape(note)}",
    )


def tile(name: str, value: str, note: str, style: str = "", unit: str = "") -> str:
    """Return a number for the top of the page; ``style`` is good, warn or bad."""
    shown = escape(value) + (f" <small>{escape(unit)}</small>" if unit else "")
    return (
        f'<div class="tile {style}"><span>{escape(name)}</span><b>{shown}</b>'
        f"<em>{escape(note)}</em></div>"
    )


def section(title: str, note: str, content: str, *, wide: bool = False) -> str:
    """Return a card of half or full width; ``content`` is HTML."""
    style = ' class="wide"' if wide else ""
    return f"<section{style}><h2>{escape(title)}</h2><p>{escape(note)}</p>{content}</section>"


def plot(svg: str) -> str:
    """Return a plot or table that scrolls if it does not fit."""
    return f'<div class="plot">{svg}</div>'


def fine(text: str, more: str) -> str:
    """Return a note that there is nothing to report."""
    return f'<div class="fine">{_FINE}<span><b>{escape(text)}</b> {escape(more)}</span></div>'
