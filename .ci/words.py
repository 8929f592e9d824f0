#!/usr/bin/env python3
"""Check the words of the tree: comments, docstrings, help texts, messages and pages. ``./dev lint`` runs it.

The rules and the house words are in ``words.toml``, with what is still to be fixed: a count for each room and rule.
A count may only go down. ``words.py`` prints the counts, ``words.py ROOM...`` the findings of these rooms, and
``words.py --lower`` writes lower counts back.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / ".ci" / "words.toml"
ROOMS = (
    *("src", "dev", "setup.py", "bench", "programs", "interop", "examples", "docs", ".ci"),
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
)
"""Places where the rules hold; tests are left to their readers."""
HASH = (".py", ".pyx", ".pxi", ".pxd", ".pyi")
MAX_WORDS = 30
"""Words in one sentence of the README, a help text or a message."""

NOUN_CLAUSE = re.compile(r"(What|Whatever|Whether|How|Who|Whom|Whoever|Whose|Which|Where|Why)\b(?! *\?)")
"""Start of a first line that is a clause instead of a name, or of what a function does."""
NOUN_PHRASE = re.compile(
    r"(?:The|A|An|Its|All|Every|Each|One|Two|Both|Another|Such|No|Nothing|Everything|Until|When|Up to"
    r"|By|With|For|Of|In|At|From|Into|Called|[A-Z][a-z]*[a-rt-z]s)\b|\("
)
"""Start of a function's first line that names a thing or a time; properties are things, functions are not."""
TRAILING = re.compile(r"; (?:whether|how many|how much|how long)\b")
"""Result of a function as a clause after its action, where "return whether" belongs."""
PERSON = re.compile(
    r"\b(?:(?<!people )(?<!users )(?<!those )(?<!readers )(?<!developers )who(?:m|ever|mever)?"
    r"|he|him|his|himself|she|her|somebody|someone|nobody|anybody|everybody)\b"
)
"""Words for people, in lower case; a thread, a program or a packet is "it"."""
STRINGS_AND_COMMENTS = {
    "#": re.compile(
        r"(?P<comment>#[^\n]*)"
        r"|(?:\b[rbuf]{1,2})?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''"
        r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')",
        re.DOTALL | re.IGNORECASE,
    ),
    "//": re.compile(
        r"(?P<comment>//[^\n]*|/\*.*?\*/)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
        re.DOTALL,
    ),
}
DOCSTRING = re.compile(r'(?P<q>"""|\'\'\')(?P<text>(?:\\.|[^\\])*?)(?P=q)', re.DOTALL)
HELP = re.compile(r"\b(?:help|short_help|epilog)=")
CODE = re.compile(r"``[^`]*``|`[^`\n]*`|\{[^{}]*\}|%[-\d.]*[a-z]|https?://\S+|:\w+:`[^`]*`|--\w[\w-]*")
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!\bvs)[.!?:;](?=\s|$)|\n\s*\n|\n\s*[-*|#]|[|·]")


@dataclass(frozen=True)
class Text:
    """A piece of prose of a file."""

    line: int
    text: str
    kind: str
    """``docstring``, ``function`` (its docstring), ``comment``, ``help``, ``message`` or ``page``."""


@dataclass(frozen=True)
class Finding:
    """A place that breaks a rule."""

    path: str
    line: int
    rule: str
    shown: str

    def __str__(self) -> str:
        """Return the line that an editor can jump to."""
        return f"{self.path}:{self.line}: {self.rule}: {self.shown}"


@dataclass(frozen=True)
class Words:
    """The lists of ``words.toml``, compiled."""

    house: re.Pattern[str]
    british: re.Pattern[str]
    left: dict[str, dict[str, int]]

    @classmethod
    def read(cls, text: str) -> Words:
        """Compile the lists of a configuration file.

        Args:
            text: TOML with ``house`` and ``british``, lists of regular expressions, and ``left``, a table of rooms.
        """
        config = tomllib.loads(text)

        def any_of(name: str) -> re.Pattern[str]:
            return re.compile(rf"\b(?:{'|'.join(config[name])})\b")

        return cls(any_of("house"), any_of("british"), config.get("left", {}))


def comments_of(source: str, mark: str) -> Iterator[Text]:
    """Yield the comments of a source text; adjacent comment lines are one comment.

    Args:
        source: text of the file.
        mark: ``#`` for Python and Cython, ``//`` for C.
    """
    start = last = 0
    lines: list[str] = []
    at = line = 0
    for match in STRINGS_AND_COMMENTS[mark].finditer(source):
        if match["comment"] is None:
            continue
        line += source.count("\n", at, match.start())
        at = match.start()
        text = match["comment"]
        text = text[1:] if mark == "#" else text.removesuffix("*/")[2:]
        alone = not source[source.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        if lines and alone and line == last + 1 and not text.strip().startswith("---"):
            lines.append(text)
        else:
            if lines:
                yield Text(start + 1, "\n".join(lines), "comment")
            start, lines = line, [text]
        last = line + text.count("\n")
    if lines:
        yield Text(start + 1, "\n".join(lines), "comment")


def kind_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return what a function's docstring is: the help of a click command, a property's, or a function's."""
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    if "command" in decorators or "group" in decorators:
        return "help"
    return "docstring" if "property" in decorators else "function"


def literal(node: ast.expr) -> str:
    """Return the text of a string expression, each replacement as one word; empty if it is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return ""


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield these statements and all below them; expressions, most of a tree, are not visited."""
    for part in body:
        yield part
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(part, name, []))
        for branch in [*getattr(part, "handlers", []), *getattr(part, "cases", [])]:
            yield from statements(branch.body)


def strings_of(source: str) -> Iterator[Text]:
    """Yield docstrings, help texts and messages of a Python module."""
    tree = ast.parse(source)
    kinds: dict[ast.stmt, str] = {}
    for node in statements(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds[node.body[0]] = kind_of(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Text(node.lineno, node.value.value, kinds.get(node, "docstring"))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                yield Text(argument.lineno, literal(argument), "message")
    if HELP.search(source):
        for found in ast.walk(tree):
            if isinstance(found, ast.keyword) and found.arg and HELP.match(f"{found.arg}="):
                yield Text(found.value.lineno, literal(found.value), "help")


def texts_of(path: Path) -> Iterator[Text]:
    """Yield the prose of a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield Text(1, source, "page")
    elif path.suffix in (".c", ".h"):
        yield from comments_of(source, "//")
    elif path.suffix in (".py", ".pyi") or path.name == "dev":
        yield from strings_of(source)
        yield from comments_of(source, "#")
    else:
        for match in DOCSTRING.finditer(source):
            yield Text(source.count("\n", 0, match.start()) + 1, match["text"], "docstring")
        yield from comments_of(source, "#")


def prose(text: str) -> str:
    """Return a text without code blocks, each piece of code as one word of as many lines."""
    for fence in (r"^```.*?^```", r"<!--.*?-->"):
        text = re.sub(fence, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    return CODE.sub(lambda found: "x" + "\n" * found[0].count("\n"), text)


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield offset and text of each sentence of more than :data:`MAX_WORDS` words."""
    start = 0
    for match in [*SENTENCE_END.finditer(text), None]:
        end = match.start() if match else len(text)
        if len(re.findall(r"[\w'’/-]+", text[start:end])) > MAX_WORDS:
            lead = len(text[start:end]) - len(text[start:end].lstrip())
            yield start + lead, text[start + lead : end]
        start = match.end() if match else end


def check_text(path: str, text: Text, words: Words) -> Iterator[Finding]:
    """Yield the findings in one piece of prose."""

    def at(offset: int, rule: str, shown: str) -> Finding:
        return Finding(path, text.line + plain.count("\n", 0, offset), rule, " ".join(shown.split())[:100])

    plain = prose(text.text)
    lower = plain.lower()
    opening = text.text.lstrip(" *\n")
    told = text.kind in ("docstring", "function", "help") or (text.kind == "comment" and path.endswith((".c", ".h")))
    if told and NOUN_CLAUSE.match(opening):
        yield at(0, "noun-clause", opening.partition("\n")[0])
    if text.kind == "function" and NOUN_PHRASE.match(opening):
        yield at(0, "noun-phrase", opening.partition("\n")[0])
    if text.kind == "function" and TRAILING.search(opening.partition("\n")[0]):
        yield at(0, "noun-clause", opening.partition("\n")[0])
    if text.kind != "message":
        for match in PERSON.finditer(lower):
            yield at(match.start(), "person", plain[max(0, match.start() - 30) : match.end() + 40])
    if text.kind in ("help", "message") or path == "README.md":
        for offset, sentence in long_sentences(plain):
            yield at(offset, "long", sentence)
    for rule, pattern in (("house-word", words.house), ("spelling", words.british)):
        for match in pattern.finditer(lower):
            yield at(match.start(), rule, plain[max(0, match.start() - 30) : match.end() + 40])


def room_of(path: str) -> str:
    """Return the room of a file: its folder under ``src/rnic``, else the first folder of its path."""
    parts = path.split("/")
    if parts[:2] == ["src", "rnic"]:
        return parts[2] if len(parts) > 3 else "rnic"
    return parts[0]


def files() -> list[str]:
    """Return the files that the rules concern, as git knows them."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *ROOMS]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    wanted = (*HASH, ".c", ".h", ".md")
    return [
        name
        for name in sorted(names)
        if (name.endswith(wanted) or name in ("dev", "setup.py")) and (ROOT / name).exists()
    ]


def find(names: list[str], words: Words, root: Path = ROOT) -> list[Finding]:
    """Return the findings in these files, in their order."""
    found: list[Finding] = []
    for name in names:
        for text in texts_of(root / name):
            found += check_text(name, text, words)
    return found


def count(found: list[Finding]) -> dict[str, dict[str, int]]:
    """Return how many findings each room has by rule."""
    rooms: dict[str, Counter[str]] = {}
    for one in found:
        rooms.setdefault(room_of(one.path), Counter())[one.rule] += 1
    return {room: dict(sorted(rooms[room].items())) for room in sorted(rooms)}


def risen(now: dict[str, dict[str, int]], left: dict[str, dict[str, int]]) -> list[tuple[str, str]]:
    """Return rooms and rules of which there are more findings than the list allows."""
    return [
        (room, rule) for room, rules in now.items() for rule, n in rules.items() if n > left.get(room, {}).get(rule, 0)
    ]


def lowered(text: str, now: dict[str, dict[str, int]], left: dict[str, dict[str, int]]) -> str:
    """Return a configuration whose list has no count above the present one."""
    head = text.partition("[left]")[0]
    lines = []
    for room in sorted(left):
        rules = {rule: min(n, now.get(room, {}).get(rule, 0)) for rule, n in left[room].items()}
        if kept := ", ".join(f"{rule} = {n}" for rule, n in rules.items() if n):
            lines.append(f'"{room}" = {{ {kept} }}\n')
    return f"{head}[left]\n{''.join(lines)}"


def main(argv: list[str]) -> int:
    """Print counts, or the findings of rooms; 1 if a room has more than its list allows."""
    text = CONFIG.read_text(encoding="utf-8")
    words = Words.read(text)
    found = find(files(), words)
    now = count(found)
    if argv == ["--lower"]:
        CONFIG.write_text(lowered(text, now, words.left), encoding="utf-8")
        return 0
    if argv:
        print(*(one for one in found if room_of(one.path) in argv or one.path in argv), sep="\n")
        return 0
    worse = risen(now, words.left)
    for room, rules in now.items():
        print(f"words: {room}: {', '.join(f'{n} {rule}' for rule, n in rules.items())}")
    for one in found:
        if (room_of(one.path), one.rule) in worse:
            print(one, file=sys.stderr)
    for room, rule in worse:
        limit = words.left.get(room, {}).get(rule, 0)
        print(f"words: {room}: {now[room][rule]} of {rule}, at most {limit}: .ci/words.toml", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
