"""How the site is built: Sphinx reads the pages of this folder, the docstrings, and a plan that is drawn for it.

Everything that a page needs is in the built folder: no font, script or picture comes from elsewhere.
"""

import contextlib
import importlib
import io
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Generic, TypeVar

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock

import treefold
import treefold.testing
from treefold.cli import main

# Docstrings are read without the frameworks, so that building the site does not install them. Where they are installed,
# viewcode may load them.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # or TensorFlow announces itself
autodoc_mock_imports = ["torch", "tensorflow", "jax", "keras"]


def stand_in(name: str, **attributes: object) -> None:
    """Give a mocked module what treefold looks at while it is imported."""
    module = importlib.import_module(name)
    package, _, own = name.rpartition(".")
    if package:
        setattr(sys.modules[package], own, module)
    vars(module).update(attributes)


class Future(Generic[TypeVar("T")]):
    """Stands for PyTorch's in signatures."""


with mock(autodoc_mock_imports):
    stand_in("tensorflow", __version__="2.16")
    stand_in("tensorflow.distribute", CrossDeviceOps=type("CrossDeviceOps", (), {"__module__": "tf.distribute"}))
    asked = dict.fromkeys(("untyped_storage", "storage_offset", "is_neg", "is_conj"))
    stand_in("torch", Tensor=type("Tensor", (), {"__module__": "torch"} | asked))
    stand_in("torch.distributed", is_available=lambda: True, GradBucket=type("GradBucket", (), {}))
    stand_in("torch.futures", Future=Future)
    stand_in("torch._C")
    stand_in("torch._C._distributed_c10d", _create_work_from_future=None)
    stand_in("torch._C._dynamo")
    stand_in("torch._C._dynamo.eval_frame", set_code_exec_strategy=None)
    stand_in("keras", __version__="3.15")
    stand_in("keras.callbacks", Callback=type("Callback", (), {"__module__": "keras.callbacks"}))
    stand_in("keras.optimizers", Optimizer=type("Optimizer", (), {"__module__": "keras.optimizers"}))
    import treefold.keras
    import treefold.tensorflow
    import treefold.torch

MODULES = (treefold, treefold.torch, treefold.tensorflow, treefold.keras, treefold.testing)

DOCS = Path(__file__).parent
ROOT = DOCS.parent
DRAWN = ROOT / "build" / "drawn"
DRAWN.mkdir(parents=True, exist_ok=True)  # before Sphinx looks for it

project = "treefold"
author = "the treefold authors"
release = treefold.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]

myst_enable_extensions = ["attrs_block"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True  # as they are written
autodoc_type_aliases = {"npt.DTypeLike": "DTypeLike"}
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
nitpicky = False  # annotations name rooms that are not public

toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = f"treefold {release}"
html_static_path = ["static"]
html_css_files = ["treefold.css"]
html_extra_path = [str(DRAWN)]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "treefold"},
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "footer_start": [],
    "footer_end": [],
    "show_prev_next": True,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
}


def newest(pattern: str) -> str:
    """Return the newest report: their names end with the day."""
    return max((ROOT / "benchmarks" / "results").glob(pattern)).relative_to(ROOT).as_posix()


# Papers that stand outside of this folder, because people look for them there, are pages of the site, too.
BORROWED = {
    "how/code": ("ARCHITECTURE.md",),
    "how/measuring": ("benchmarks/README.md",),
    "how/right-numbers": (newest("right-numbers-*.md"),),
    "how/host-memory": (newest("20*.md"), newest("exact-*.md"), newest("sums-*.md")),
    "how/ranks-measured": (newest("ranks-*.md"), newest("hosts-*.md"), newest("keras-*.md")),
    "how/averaging-measured": (newest("averaging-*.md"),),
    "how/gpus-measured": ("benchmarks/results/gpu-2026-11-26.md",),
    "contributing": ("CONTRIBUTING.md",),
    "changelog": ("CHANGELOG.md",),
}
_PAGES = {paper: f"docs/{page}.md" for page, papers in BORROWED.items() for paper in papers} | {
    "docs/adr": "docs/more.md",
    "README.md": "docs/index.md",
    "benchmarks": "docs/how/measuring.md",
}


def lead_from(page: str, paper: str, target: str) -> str | None:
    """Return where a link of ``paper`` leads when it stands on ``page``, or None if the site has nothing there."""
    path, hash_, anchor = target.partition("#")
    if not path or "://" in path:
        return target
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(paper), path))
    wanted = _PAGES.get(wanted, wanted)
    is_picture = wanted.endswith((".svg", ".png")) and (ROOT / wanted).exists()
    if not is_picture and not (wanted.startswith("docs/") and wanted.endswith(".md")):
        return None
    return posixpath.relpath(wanted, posixpath.dirname(f"docs/{page}.md")) + hash_ + anchor


def read_page(_: Sphinx, page: str, source: list[str]) -> None:
    """Take a borrowed page from its papers, and lead links to the site's own pages, or, to files of code, nowhere."""

    def lead(link: re.Match[str]) -> str:
        target = lead_from(page, paper, link["target"])
        return link["words"].strip("[]") if target is None else f"{link['words']}({target})"

    texts = []
    for paper in BORROWED.get(page, (f"docs/{page}.md",)):
        text = (ROOT / paper).read_text(encoding="utf-8") if page in BORROWED else source[0]
        if texts:  # a section of the first paper's page
            text = re.sub(r"^(?=#+ )", "#", text, flags=re.MULTILINE)
        texts.append(re.sub(r"(?P<words>\[[^\]]*\])\((?P<target>[^)\s]+)\)", lead, text))
    source[0] = "\n\n".join(texts)


def draw_plan(_: Sphinx) -> None:
    """Draw the plan that a page plays, as ``treefold plan --draw`` does for everybody."""
    machine = ["--topology", "dgx1_v100", "--devices", "0-6", "--size", "256M"]
    command = ["plan", *machine, "--draw", str(DRAWN / "plan_player.html")]
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main(command)
        except SystemExit as ended:
            if ended.code:
                raise


def link_names(app: Sphinx, page: nodes.document) -> None:
    """Let names that are written as code lead to the reference: full ones everywhere, classes' own names within it."""
    full = {name: name for module in MODULES for name in (f"{module.__name__}.{own}" for own in module.__all__)}
    if app.env.docname in {"reference/treefold", "reference/torch"}:
        full |= {name: f"treefold.{name}" for name in treefold.__all__ if name[0].isupper()}
    for literal in list(page.findall(nodes.literal)):
        target = full.get(literal.astext().removesuffix("()"))
        if target and isinstance(literal.parent, nodes.paragraph | nodes.list_item):
            link = pending_xref(
                "", literal.deepcopy(), refdomain="py", reftype="obj", reftarget=target, refexplicit=True
            )
            link["refdoc"] = app.env.docname
            literal.replace_self(link)


def setup(app: Sphinx) -> None:
    """Ask Sphinx to call these."""
    app.connect("builder-inited", draw_plan)
    app.connect("source-read", read_page)
    app.connect("doctree-read", link_names)
