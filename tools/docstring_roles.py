"""What the documentation site needs to read our docstrings: their roles become links, their examples examples."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

import optstream

ROLE = re.compile(r":(?:class|func|meth|attr|mod|exc|data):`~?\.?([\w.]+)`")
"""A reference as Sphinx writes it."""
EXAMPLE = re.compile(r"^Example:$", flags=re.MULTILINE)


def link(name: str, home: Object) -> str:
    """Return a link in Markdown to a name as a docstring writes it, or the name itself where it has no page.

    >>> from griffe import Class
    >>> link("Guarantee", Class("Stream"))
    '[`Guarantee`][optstream.Guarantee]'
    """
    first, _, rest = name.removeprefix("optstream.").partition(".")
    if first in optstream.__all__:
        return f"[`{name}`][optstream.{first}{'.' * bool(rest)}{rest}]"
    owner = home if home.is_class else home.parent
    if owner is not None and owner.name in optstream.__all__ and not rest and first in owner.members:
        return f"[`{name}`][optstream.{owner.name}.{name}]"
    return f"`{name}`"


class DocstringRoles(Extension):
    """The change of every docstring on its way into the site."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            text = ROLE.sub(lambda found: link(found[1], obj), obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub("Examples:", text)
