"""What mkdocs does beside reading ``docs``: pages from elsewhere, and links that fit the site.

README is the first page; CONTRIBUTING, CHANGELOG and SECURITY are pages too. A link to any other
file of the repository leads to a page that shows the file, so that the same links work here and
where the repository is browsed.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT_PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""File of the repository → page of the site."""

CELL: Final = re.compile(r"<td>.*?</td>", re.DOTALL)
LINK: Final = re.compile(r"(?<=\]\()([^)#:\s]+)(?=(?:#[^)\s]*)?\))")
LANGUAGES: Final = {".py": "python", ".yaml": "yaml", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in ``docs``."""
    pages = {
        page: (ROOT / name).read_text(encoding="utf-8") for name, page in PROJECT_PAGES.items()
    }
    texts = pages | {
        file.src_uri: file.content_string for file in files if file.src_uri.endswith(".md")
    }
    for name, text in texts.items():
        for target in LINK.findall(text):
            shown = repository_path(name, target)
            if page_of(shown).startswith("files/") and (ROOT / shown).is_file():
                pages[page_of(shown)] = file_page(shown)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Make links between files links between pages."""
    name = page.file.src_uri
    if name.startswith("files/"):
        return markdown
    if page.parent is None:
        page.meta.setdefault("hide", ["navigation"])  # It would list this page alone.

    def link(found: re.Match[str]) -> str:
        target = repository_path(name, found[0])
        if not (ROOT / target).is_file():
            return found[0]
        return posixpath.relpath(page_of(target), posixpath.dirname(name) or ".")

    return LINK.sub(link, markdown)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Let names in tables break after an underscore, and options nowhere."""
    if not any(heading.children for heading in page.toc):
        page.meta.setdefault("hide", []).append("toc")  # It would be empty.

    def cell(found: re.Match[str]) -> str:
        text = re.sub(r"_(?=\w+[^<>]*</code>)", "_<wbr>", found[0])
        return re.sub(r"<code>(?=--)", '<code class="option">', text)

    return CELL.sub(cell, html)


def repository_path(page: str, target: str) -> str:
    """The file of the repository that a link on ``page`` leads to."""
    origins = {page: name for name, page in PROJECT_PAGES.items()}
    origin = origins.get(page, f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def page_of(path: str) -> str:
    """The page that shows a file of the repository."""
    if path in PROJECT_PAGES:
        return PROJECT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}.md"


def file_page(path: str) -> str:
    """A page with the text of a file."""
    language = LANGUAGES.get(Path(path).suffix, "text")
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    return f"# {path}\n\n``````{language}\n{text}\n``````\n"
