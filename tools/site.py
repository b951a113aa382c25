"""What `mkdocs build` needs beside its pages: files of the repository that they link to.

Pages lie in `docs/` and may link to any file of the repository, as they do where the repository is
read.  The site gets a page for each such file, below `repository/`: Markdown as it is, a folder as
a list of its files, all else as a block of code.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
HOME = "README.md"
_FOLDER = "repository/"
_LINK = re.compile(r"(?<=\]\()[^)\s#:]+(?=[)#])")
_LANGUAGES = {".py": "python", ".sh": "sh", ".toml": "toml", ".json": "json"}


# The beginnings of paths of pages that teach, and of those that record.
_TEACHES = ("start", "concepts", "howto", "tutorials/", "errors", "glossary", "limits")
_RECORDS = ("repository/", "measurements/", "paper/", "decisions/", "alpacomm/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of `docs/` to which a page leads.

    Args:
        files: The files of the site.
        config: The configuration of the site.

    Returns:
        The same files, and more.
    """
    waiting = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        uri, text = waiting.pop()
        for target in _targets(uri, text):
            led = _uri(target)
            if files.get_file_from_path(led) is None:
                content = _content(target)
                files.append(File.generated(config, led, content=content))
                waiting.append((led, content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository to their pages of the site, and rank the page.

    In a search pages that teach come before those that record.

    Args:
        markdown: The text of the page.
        page: The page.
        config: The configuration of the site.
        files: The files of the site.

    Returns:
        The text with other links.
    """
    del config, files
    uri = page.file.src_uri
    records = uri.startswith(_RECORDS)
    page.meta["search"] = {"boost": 0.2 if records else 4.0 if uri.startswith(_TEACHES) else 1.0}
    here = posixpath.dirname(uri)
    folder = _folder(uri)

    def led(match: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_resolved(folder, match[0])), here or ".")

    return markdown if folder is None else _LINK.sub(led, markdown)


def _targets(uri: str, text: str) -> Iterator[str]:
    """Files and folders of the repository to which a page leads."""
    folder = _folder(uri)
    if folder is not None:
        for link in _LINK.findall(text):
            target = _resolved(folder, link)
            if (ROOT / target).exists():
                yield target


def _folder(uri: str) -> str | None:
    """Return the folder from which a page's links start; None for a block of code."""
    if not uri.startswith(_FOLDER):
        return posixpath.dirname(f"docs/{uri}")
    name = uri.removeprefix(_FOLDER)
    if (ROOT / name).is_file():
        return posixpath.dirname(name)
    name = name.removesuffix(".md")
    return name if (ROOT / name).is_dir() else None


def _resolved(folder: str | None, link: str) -> str:
    """Return the path in the repository to which a link of a page in `folder` leads."""
    return posixpath.normpath(posixpath.join(folder or "", link))


def _uri(target: str) -> str:
    """Return the page of the site for a file or a folder of the repository."""
    path = ROOT / target
    if path.is_dir() and (path / HOME).is_file():
        return _uri(posixpath.join(target, HOME))
    if target == HOME:
        return HOME
    if target.startswith("docs/") and not path.is_dir():
        return target.removeprefix("docs/")
    return _FOLDER + (target if target.endswith(".md") else f"{target}.md")


def _content(target: str) -> str:
    """Return the page for a file or a folder outside of `docs/`, as Markdown."""
    path = ROOT / target
    if target.endswith(".md"):
        return path.read_text(encoding="utf-8")
    if path.is_dir():
        names = sorted(p.name for p in path.iterdir() if not p.name.startswith(("_", ".")))
        return f"# {target}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
    text = path.read_text(encoding="utf-8")
    return f"# {target}\n\n~~~~{_LANGUAGES.get(path.suffix, 'text')}\n{text}\n~~~~\n"
