"""Sphinx settings. Layout pages and the conformance table are made from code and tests at every build."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

project = "rnic"
author = "the rnic developers"
release = version = installed_version("rnic")

sys.path.insert(0, str(HERE))
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "citations"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
exclude_patterns = ["_build", "layouts/ctxmgt-rows.md", "layouts/*-table.md"]
myst_heading_anchors = 3

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["rnic.css"]
html_js_files = ["pictures.js"]
html_title = f"rnic {release}"
html_show_copyright = False

subprocess.run([sys.executable, HERE / "gen_layouts.py"], check=True)
subprocess.run([sys.executable, HERE / "gen_conformance.py"], check=True)
subprocess.run([sys.executable, HERE / "gen_errors.py"], check=True)
subprocess.run([sys.executable, HERE / "gen_symbols.py"], check=True)
subprocess.run([sys.executable, HERE / "gen_configuration.py"], check=True)
subprocess.run([sys.executable, HERE / "gen_ctxmgt.py"], check=True)
subprocess.run([sys.executable, HERE / "gen_demands.py"], check=True)
subprocess.run([sys.executable, HERE / "gen_gateware.py"], check=True)
subprocess.run([sys.executable, HERE / "gen_cli.py"], check=True)


def join_chinese(app: object, name: str, source: list[str]) -> None:
    """Join lines of Chinese text, since browsers show a line break as a space."""
    if name.startswith("zh/"):
        source[0] = re.sub(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])", "", source[0])


def setup(app: Any) -> None:
    """Register with Sphinx, which calls this."""
    app.connect("source-read", join_chinese)
