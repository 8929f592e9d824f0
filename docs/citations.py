"""Makes each citation of a source document on a page a link to its clause: "000 5.2.4", "004 §7.3", "002 (5.4.2)".

The targets are the labels ``dNNN-A-B`` of the pages in ``documents``; ``design.md``, ``hardware.md`` and
``software.md`` have theirs. A clause without a label of its own leads to the one above it; one whose chapter is unknown
is a warning, which fails the build.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

CITED = re.compile(
    r"""(?<![\w.,-])(?:(?P<page>design|hardware|software)\.md(?:[,]?[ ]?(?:section[ ]|§)?(?P<section>\d[a-z]?)(?!\d))?
    |(?P<document>00[0-4])(?![\d.]*[\w%])
    (?:(?:'s)?,?[ ](?:§|section[ ]|\()?(?P<clause>\d(?:\.\d+)+|[1-5](?=\))))?)""",
    re.VERBOSE,
)
PREFIX = {"design": "design", "hardware": "hw", "software": "sw"}
LEAVE = (nodes.reference, nodes.literal, nodes.literal_block, nodes.title, nodes.raw, nodes.comment)
log = logging.getLogger(__name__)


def labels_of(match: re.Match[str]) -> list[str]:
    """Return the labels to which a citation may link, most exact first."""
    if match["page"]:
        exact = [f"{PREFIX[match['page']]}-{match['section']}"] if match["section"] else []
        return [*exact, *([] if exact else [match["page"]])]
    parts = match["clause"].split(".") if match["clause"] else []
    labels = ["-".join([f"d{match['document']}", *parts[:count]]) for count in range(len(parts), 0, -1)]
    # a number alone names a chapter, which not every document has
    return [label for label in labels if label.count("-") > 1 or len(parts) == 1] or [f"d{match['document']}"]


class Citations(SphinxPostTransform):
    """See the module."""

    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        """Replace texts of the page by texts and references."""
        here = self.env.docname
        known = self.env.domains["std"].anonlabels
        for text in list(self.document.findall(nodes.Text)):
            node: nodes.Node | None = text
            while node is not None and not isinstance(node, LEAVE):
                node = node.parent
            if node is not None:
                continue
            made: list[nodes.Node] = []
            end = 0
            for match in CITED.finditer(str(text)):
                found = next((known[label] for label in labels_of(match) if label in known), None)
                if found is None:
                    log.warning("%r cites no clause that there is", match[0], location=text.parent)
                    continue
                page, anchor = found[:2]
                if page == here:
                    uri = f"#{anchor}"
                else:
                    uri = f"{self.app.builder.get_relative_uri(here, page)}#{anchor}"
                made += [nodes.Text(str(text)[end : match.start()])]
                made += [nodes.reference("", match[0], internal=True, refuri=uri, classes=["clause"])]
                end = match.end()
            if made:
                made.append(nodes.Text(str(text)[end:]))
                text.parent.replace(text, [one for one in made if not isinstance(one, nodes.Text) or one])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx, which calls this."""
    app.add_post_transform(Citations)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
