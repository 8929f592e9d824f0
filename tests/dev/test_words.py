"""The linter of words: each rule finds what it is for and nothing else, in every language of the tree."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_words", ROOT / ".ci" / "words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


words = load()
LISTS = words.Words.read('house = ["in vain"]\nbritish = ["colours?", "licen(?:c)e"]\n[left]\n')
Rules = Callable[[str, str], list[tuple[int, str]]]


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    """Line and rule of each finding in a file of this name and text."""

    def found(name: str, text: str) -> list[tuple[int, str]]:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return [(one.line, one.rule) for one in words.find([name], LISTS, tmp_path)]

    return found


@pytest.mark.parametrize(
    ("first", "noun"),
    [
        ("What a packet carries.", True),
        ("Whether the queue is full.", True),
        ("How many bytes are left.", True),
        ("Which queue pair it was.", True),
        ("Return what a packet carries.", False),
        ("Whatsoever.", False),
        ("Show how much is left.", False),
    ],
)
def test_a_first_line_is_no_noun_clause(rules: Rules, first: str, noun: bool) -> None:
    expected = [(1, "noun-clause")] if noun else []
    assert rules("a.py", f'"""{first}\n\nWhat follows is free."""\n') == expected
    assert rules("a.pyx", f'"""{first}"""\ncdef int x = <int?>y\n') == expected
    assert rules("a.c", f"/* {first} */\nint x;\n") == expected
    assert rules("b.py", f"# {first}\n") == []  # a comment may be about anything


def test_a_functions_first_line_is_an_imperative(rules: Rules) -> None:
    assert rules("a.py", 'def f() -> int:\n    """The bytes that are left."""') == [(2, "noun-phrase")]
    assert rules("a.py", 'async def f() -> int:\n    """A number."""') == [(2, "noun-phrase")]
    assert rules("a.py", 'def f() -> int:\n    """Return the bytes that are left."""') == []
    for line in ("Cycles of a WRITE.", "Up to 8 packets.", "Until all ended.", "One burst.", "(offset, size) of it."):
        assert rules("a.py", f'def f() -> int:\n    """{line}"""') == [(2, "noun-phrase")]
    for line in ("Process a packet.", "Address a page.", "Cross a clock domain."):
        assert rules("a.py", f'def f() -> int:\n    """{line}"""') == []
    assert rules("a.py", 'def f() -> int:\n    """Take one; whether there was one."""') == [(2, "noun-clause")]
    assert rules("a.py", 'def f() -> int:\n    """Take one; return whether there was one."""') == []
    assert rules("a.py", 'class A:\n    """A thing."""\n    x = 1\n    """The number."""') == []
    assert rules("a.py", 'class A:\n    @property\n    def f(self) -> int:\n        """The number."""') == []


@pytest.mark.parametrize(
    ("text", "person"),
    [
        ("the thread who sleeps", True),
        ("give it to whoever asks", True),
        ("wake him", True),
        ("nobody reads", True),
        ("people who run it", False),
        ("users who write to us", False),
        ("the whole hexadecimal helper", False),
        ("a field named ``who``", False),
    ],
)
def test_a_thread_is_it(rules: Rules, text: str, person: bool) -> None:
    expected = [(1, "person")] if person else []
    assert rules("a.py", f"x = 1  # {text}\n") == expected
    assert rules("a.py", f'"""A module: {text}."""\n') == expected
    assert rules("a.h", f"int x; /* {text} */\n") == expected
    assert rules("a.pxi", f"cdef int x  # {text}\n") == expected
    assert rules("page.md", f"A page: {text}.\n") == expected
    assert rules("a.py", f'who = "{text}"\n') == []
    assert rules("a.c", f'const char *x = "{text}";\n') == []


LONG = " ".join(["word"] * 31)
SHORT = " ".join(["word"] * 30)


@pytest.mark.parametrize(
    "code",
    [
        'raise ValueError("{}")',
        'parser.add_argument("--x", help="{}")',
        '@click.command()\ndef f() -> None:\n    """{}"""',
    ],
)
def test_messages_and_help_texts_have_short_sentences(rules: Rules, code: str) -> None:
    assert [rule for _, rule in rules("a.py", code.format(LONG))] == ["long"]
    assert rules("a.py", code.format(SHORT)) == []
    assert rules("a.py", code.format(f"{SHORT}. {SHORT}")) == []


def test_replacements_of_a_message_count_as_a_word(rules: Rules) -> None:
    assert rules("a.py", f'raise ValueError(f"{SHORT[5:]} {{a + b * c}}")') == []


def test_docstrings_and_pages_may_have_long_sentences(rules: Rules) -> None:
    assert rules("a.py", f'"""{LONG}."""') == []
    assert rules("page.md", LONG) == []
    assert rules("README.md", f"A line.\n\n{LONG}") == [(3, "long")]


def test_code_on_a_page_is_no_prose(rules: Rules) -> None:
    assert rules("README.md", f"Run:\n\n```sh\n{LONG}\ncolour\n```\n\nor `colour`") == []


def test_spelling_and_house_words(rules: Rules) -> None:
    assert rules("page.md", "one\n\nits colour, asked in vain\n") == [(3, "house-word"), (3, "spelling")]
    assert rules("a.py", "# the\n# Licence\n\n\nx = 1  # colours\n") == [(2, "spelling"), (5, "spelling")]
    assert rules("a.c", "int colour;\n") == []


def test_adjacent_comment_lines_are_one_comment() -> None:
    source = "# one\n# two\n\n# three\nx = 1  # four\ny = 2  # five\n"
    assert [(text.line, text.text) for text in words.comments_of(source, "#")] == [
        (1, " one\n two"),
        (4, " three"),
        (5, " four"),
        (6, " five"),
    ]


def test_a_mark_inside_a_string_starts_no_comment() -> None:
    assert list(words.comments_of('x = "# no" + \'"# no\' + """\n# no"""\n', "#")) == []
    assert list(words.comments_of('char *x = "/* no */", y = \'"\';\n', "//")) == []


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("src/rnic/wire/grh.py", "wire"),
        ("src/rnic/engine/io/poll.c", "engine"),
        ("src/rnic/__init__.py", "rnic"),
        ("bench/harness.py", "bench"),
        ("README.md", "README.md"),
    ],
)
def test_rooms(path: str, room: str) -> None:
    assert words.room_of(path) == room


def test_counts_may_only_go_down() -> None:
    left = {"wire": {"person": 2}}
    assert words.risen({"wire": {"person": 2}}, left) == []
    assert words.risen({"wire": {"person": 3}}, left) == [("wire", "person")]
    assert words.risen({"mem": {"person": 1}}, left) == [("mem", "person")]
    text = "house = []\n[left]\nwire = { person = 2 }\n"
    assert words.lowered(text, {"wire": {"person": 1}}, left) == 'house = []\n[left]\n"wire" = { person = 1 }\n'
    assert words.lowered(text, {"wire": {"person": 3}}, left) == 'house = []\n[left]\n"wire" = { person = 2 }\n'
    assert words.lowered(text, {}, left) == "house = []\n[left]\n"


def test_the_lists_can_be_read() -> None:
    lists = words.Words.read(words.CONFIG.read_text(encoding="utf-8"))
    for british in ("behaviour", "licence", "serialised", "amortise", "towards", "labelled"):
        assert lists.british.search(british), british
    for american in ("behavior", "license", "rise", "advise", "exercise", "precise", "labeled", "center"):
        assert not lists.british.search(american), american
    assert lists.house.search("asked in vain")


def test_the_list_of_what_is_left_names_rooms_that_exist() -> None:
    lists = words.Words.read(words.CONFIG.read_text(encoding="utf-8"))
    for room in lists.left:
        assert any((words.ROOT / place / room).exists() for place in ("src/rnic", ".")), room
