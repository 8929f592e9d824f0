"""The pages on the source documents: what code, tests and pages cite is there, and no file is named that is not."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "documents").glob("*.md")}
LABELS = {label for text in PAGES.values() for label in re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)}
FILES = [
    path
    for folder, names in (("src", ("py", "c", "h", "pyx")), ("docs", ("md", "py")), ("tests", ("py", "txt", "toml")))
    for name in names
    for path in sorted((ROOT / folder).rglob(f"*.{name}"))
    if "_build" not in path.parts and "layouts" not in path.parts and path != Path(__file__).resolve()
] + [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
CLAUSE = re.compile(r"(?<![\w.,-])(00[0-4])(?:'s)?,? (?:§ ?|section |\()?(\d(?:\.\d+)+)")


@pytest.fixture
def citations(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    pytest.importorskip("sphinx", reason="Sphinx is an extra: ./dev setup docs")
    monkeypatch.syspath_prepend(str(DOCS))
    import citations as module

    return SimpleNamespace(CITED=module.CITED, labels_of=module.labels_of)


@pytest.mark.slow
def test_every_cited_clause_is_explained() -> None:
    cited = {
        (document, clause, path.relative_to(ROOT).as_posix())
        for path in FILES
        for document, clause in CLAUSE.findall(path.read_text(encoding="utf-8"))
    }
    assert len({clause for _, clause, _ in cited}) > 60
    assert [one for one in sorted(cited) if f"d{one[0]}-{one[1].replace('.', '-')}" not in LABELS] == []


@pytest.mark.parametrize(("chapter", "clauses"), [("d000-5-", 57), ("d001-3-", 7), ("d002-", 46), ("d004-7-", 8)])
def test_every_numbered_clause_of_the_documents_is_there(chapter: str, clauses: int) -> None:
    """As many as the documents have, counted in them."""
    assert sum(label.startswith(chapter) for label in LABELS) == clauses


@pytest.mark.slow
def test_no_page_or_comment_names_a_file_that_is_not_here() -> None:
    names = {path.name for path in ROOT.rglob("*.md") if ".venv" not in path.parts} | {"index.md", "cli.md"}
    wrong = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in FILES
        for name in re.findall(r"(?<![\w/-])([a-z_]+\.md)\b", path.read_text(encoding="utf-8"))
        if name not in names and "test_" not in path.name and not (DOCS / "layouts" / name).exists()
    ]
    generated = re.findall(r'"([a-z-]+)",\n        "', (DOCS / "gen_layouts.py").read_text(encoding="utf-8"))
    assert [one for one in wrong if one[1].removesuffix(".md") not in generated] == []


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("000 5.2.4", ["d000-5-2-4", "d000-5-2"]),
        ("004 §7.3", ["d004-7-3"]),
        ("document 002 (5.4.2)", ["d002-5-4-2", "d002-5-4"]),
        ("001's 32 bytes", ["d001"]),
        ("hardware.md 1a", ["hw-1a"]),
        ("design.md", ["design"]),
    ],
)
def test_citations_lead_to_their_clause(citations: SimpleNamespace, text: str, labels: list[str]) -> None:
    match = citations.CITED.search(text)
    assert match is not None
    assert citations.labels_of(match) == labels


@pytest.mark.parametrize("text", ["1,000 packets", "000A35", "127.0.0.1", "2,001 rows", "0.004 s", "001100"])
def test_numbers_are_no_citations(citations: SimpleNamespace, text: str) -> None:
    assert citations.CITED.search(text) is None


@pytest.mark.parametrize("name", sorted(path.name for path in (DOCS / "zh").glob("*.md")))
def test_chinese_pages_have_the_sections_of_the_english_ones(name: str) -> None:
    english, chinese = (
        [
            line.partition(" ")[0]
            for line in re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).splitlines()
            if line.startswith("#")
        ]
        for text in ((DOCS / name).read_text(encoding="utf-8"), (DOCS / "zh" / name).read_text(encoding="utf-8"))
    )
    assert chinese == english
