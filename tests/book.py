"""The site of docs/: puts together what it is built from, and checks every link, in the sources and in what was built.

book.py stage SOURCE     README.md, docs/ and the files that they link to, as they lie in the repository
book.py links            the links of all documents, by GitHub's rules
book.py check SITE       the links of all pages of the site
"""

import html
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = "docs/SUMMARY.md"

# A link or picture in a document: [text](target), [name]: target.
LINK = re.compile(r"\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)


def tracked():
    """The repository's files."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}


def without_code(text):
    """A document without its blocks and words of code."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)


def links(name):
    """The targets of a document's links."""
    return [one or two for one, two in LINK.findall(without_code((ROOT / name).read_text()))]


def resolved(name, target):
    """The path in the repository that a relative link leads to, and its anchor."""
    parts = urlsplit(target)
    path = (ROOT / name).parent / unquote(parts.path) if parts.path else ROOT / name
    return path.resolve().relative_to(ROOT).as_posix(), parts.fragment


def is_external(target):
    return re.match(r"[a-z]+:", target) is not None


def documents(files):
    return sorted(name for name in files if name.endswith(".md"))


def anchors(name):
    """The anchors of a document's headings, as GitHub makes them."""
    seen, made = {}, set()
    text = re.sub(r"^( *)```.*?^\1```$", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ +(.+?) *#*$", text, re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        made.add(f"{slug}-{count}" if count else slug)
    return made


def wrong_in_sources(files):
    """What is wrong with the documents' links, as GitHub shows them."""
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    found = {name: anchors(name) for name in documents(files)}
    for name in found:
        for target in links(name):
            if is_external(target):
                parts = urlsplit(target)
                if parts.scheme != "https" or not re.fullmatch(r"[a-z0-9.-]+\.[a-z]{2,}", parts.netloc):
                    yield f"{name}: {target} is no https address"
                continue
            path, anchor = resolved(name, target)
            if path not in files and path not in folders:
                yield f"{name}: {target}: there is no {path}"
            elif anchor and anchor not in found.get(path, ()):
                yield f"{name}: {target}: {path} has no heading of that name"
    chapters = [resolved(SUMMARY, target)[0] for target in links(SUMMARY)]
    pages = {name for name in found if name.startswith("docs/")} - {SUMMARY}
    for name in sorted(pages - set(chapters)):
        yield f"{name} is not in {SUMMARY}"
    for name in sorted({name for name in chapters if chapters.count(name) > 1}):
        yield f"{name} is twice in {SUMMARY}"


def stage(source):
    """Copies what the site is built from: chapters, docs, and what these link to."""
    files = tracked()
    chapters = {resolved(SUMMARY, target)[0] for target in links(SUMMARY)}
    wanted = chapters | {name for name in files if name.startswith("docs/")}
    linked = {resolved(name, target)[0] for name in chapters for target in links(name) if not is_external(target)}
    for path in linked:
        inside = {name for name in files if name == path or name.startswith(path + "/")}
        wanted |= inside
        if path not in files and path:
            listing(source / path, path, inside)
    shutil.rmtree(source / "docs", ignore_errors=True)
    for name in wanted:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    summary = (ROOT / SUMMARY).read_text()
    (source / "SUMMARY.md").write_text(re.sub(r"\]\(([^)]+)\)", lambda link: f"]({resolved(SUMMARY, link[1])[0]})", summary))
    (source / SUMMARY).unlink()
    # In the site the contents are beside every page.
    contents = '<!doctype html><meta charset=utf-8><meta http-equiv=refresh content="0; url=../index.html"><a href="../index.html">Contents</a>\n'
    (source / SUMMARY).with_suffix(".html").write_text(contents)


def listing(folder, path, inside):
    """A page for a link to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(Path(name).relative_to(path).as_posix() for name in inside)
    items = "".join(f'<li><a href="{html.escape(name)}">{html.escape(name)}</a></li>' for name in names)
    (folder / "index.html").write_text(f"<!doctype html><meta charset=utf-8><title>{path}</title><h1>{path}</h1><ul>{items}</ul>\n")


class Page(HTMLParser):
    """The links and anchors of a built page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        self.links += [given[key] for key in ("href", "src") if given.get(key)]


def wrong_in_site(site):
    """What is wrong with the links of the built pages."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    if len(pages) < 10:
        yield f"{site} has {len(pages)} pages"
    for path, page in pages.items():
        # mdBook gives it the place of the site's root for its base.
        if path.name in ("404.html", "toc.html"):
            continue
        for target in page.links:
            if is_external(target):
                continue
            parts = urlsplit(target)
            other = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if other.is_dir():
                other = other / "index.html"
            if not other.exists():
                yield f"{path.relative_to(site)}: {target}: there is no such file"
            elif parts.fragment and other in pages and unquote(parts.fragment) not in pages[other].ids:
                yield f"{path.relative_to(site)}: {target}: no such anchor"


def main(what, folder="."):
    folder = Path(folder).resolve()
    if what == "stage":
        stage(folder)
        return 0
    wrong = list(wrong_in_sources(tracked()) if what == "links" else wrong_in_site(folder))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
