"""The one-page documents exist, stay one page, and tell the truth about names and commands."""

from __future__ import annotations

import re

import pytest

PAGE_LINES_MAX = 110
PAGES = (
    "README.md",
    "docs/ARCHITECTURE.md",
    "docs/FORMAT.md",
    "docs/GLOSSARY.md",
    "docs/INVARIANTS.md",
)
DECISION_HEADINGS = (
    "## Situation",
    "## Choice",
    "## Rejected",
    "## Price",
    "## How we would notice it was wrong",
)


@pytest.fixture(scope="module")
def documents(root, project_files):
    return {
        name: (root / name).read_text(encoding="utf-8")
        for name in project_files
        if name.endswith(".md")
    }


@pytest.fixture(scope="module")
def decisions(documents):
    return {name: text for name, text in documents.items() if name.startswith("docs/adr/")}


@pytest.mark.parametrize("page", PAGES)
def test_the_page_exists(documents, page):
    assert documents.get(page, "").startswith("# ")


def test_documents_stay_one_page(documents):
    long = {name: text.count("\n") for name, text in documents.items()}
    assert not {name: count for name, count in long.items() if count > PAGE_LINES_MAX}


def test_decisions_are_numbered_once_and_have_all_parts(decisions):
    numbers = [re.fullmatch(r"docs/adr/(\d{4})-[a-z0-9-]+\.md", name) for name in decisions]
    assert numbers
    assert all(numbers)
    assert len({number.group(1) for number in numbers}) == len(numbers)
    missing = [
        f"{name}: {heading}"
        for name, text in decisions.items()
        for heading in DECISION_HEADINGS
        if not re.search(rf"^{heading}$", text, re.MULTILINE)
    ]
    assert not missing, "\n".join(missing)


def test_links_between_documents_lead_somewhere(root, documents):
    broken = [
        f"{name}: {target}"
        for name, text in documents.items()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        if not ((root / name).parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_every_invariant_that_the_code_cites_is_explained(documents, product):
    cited = {number for source in product for number in re.findall(r"\bI-\d\d\b", source.text)}
    explained = set(re.findall(r"\bI-\d\d\b", documents.get("docs/INVARIANTS.md", "")))
    assert cited
    assert cited - explained == set()


def test_every_command_that_a_document_names_exists(root, documents):
    script = (root / "run").read_text(encoding="utf-8")
    known = re.search(r'^COMMANDS="([^"]*)"', script, re.MULTILINE)
    commands = {words.split()[0] for words in known.group(1).split(", ")}
    named = {
        command for text in documents.values() for command in re.findall(r"\./run ([a-z]+)", text)
    }
    assert {"demo", "test"} <= named
    assert named <= commands
