"""The documents exist and tell the truth about names and commands."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from importlib import metadata

import click
import pytest

import oncelog
from oncelog.api.cli.main import program
from oncelog.storage.exceptions import OncelogError

PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/ARCHITECTURE.md",
    "docs/BENCHMARKS.md",
    "docs/BOUNDS.md",
    "docs/FORMAT.md",
    "docs/GLOSSARY.md",
    "docs/INVARIANTS.md",
    "docs/OPERATIONS.md",
    "docs/RAY_DATA.md",
    "docs/SETTINGS.md",
    "docs/SPARK.md",
    "docs/TESTING.md",
    "docs/commands.md",
    "docs/concepts.md",
    "docs/guides/kafka.md",
    "docs/quickstart.md",
    "docs/when-not-to-use-it.md",
)
DECISION_HEADINGS = (
    "## Situation",
    "## Choice",
    "## Rejected",
    "## Price",
    "## How we would notice it was wrong",
)


FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PATTERN_PATH = re.compile(r"(?:^|/)[A-Z]{1,8}(?:/|$|\.(?!md$))")
"""A path with a word to fill in: ``DIR/drivers``, ``bench/NAME.py``."""

TEST_NAME = re.compile(r"\btest_\w+")


@pytest.fixture(scope="module")
def documents(root, project_files):
    return {
        name: (root / name).read_text(encoding="utf-8")
        for name in project_files
        if name.endswith(".md")
    }


@pytest.fixture(scope="module")
def decisions(documents):
    return {
        name: text
        for name, text in documents.items()
        if name.startswith("docs/adr/") and name != "docs/adr/README.md"
    }


@pytest.fixture(scope="module")
def navigation(root):
    """The pages under ``nav`` in mkdocs.yml, in order, as files of the repository."""
    text = (root / "mkdocs.yml").read_text(encoding="utf-8")
    return [f"docs/{page}" for page in re.findall(r"([\w/-]+\.md)$", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def invariant_rows(documents):
    """The cells of each rule: number, statement, reason, asserted in, tested in, watched by."""
    lines = documents["docs/INVARIANTS.md"].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| I-")]
    assert rows
    assert all(len(row) == 6 for row in rows)
    return rows


@pytest.mark.parametrize("page", PAGES)
def test_the_page_exists(documents, page):
    assert documents.get(page, "").startswith("# ")


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


def test_every_decision_is_in_the_index_with_its_number_and_in_the_navigation(
    documents, decisions, navigation
):
    row = re.compile(r"^\| \[(\d+)\]\(([\w-]+\.md)\) \| [^|]+ \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
    index = row.findall(documents["docs/adr/README.md"])
    files = sorted(name.removeprefix("docs/adr/") for name in decisions)
    assert index == [(str(int(name[:4])), name) for name in files]
    assert [page for page in navigation if page in decisions] == sorted(decisions)


def test_every_page_is_in_the_navigation_once(documents, navigation):
    pages = [name for name in documents if name.startswith("docs/")]
    assert sorted(page for page in navigation if page in pages) == pages


def test_every_public_name_is_in_the_reference(documents):
    """Errors are in a table that is made from the code."""
    shown = {
        name
        for page, text in documents.items()
        if page.startswith("docs/reference/")
        for name in re.findall(r"^::: oncelog\.([\w.]+)$", text, re.MULTILINE)
    }
    names = {
        f"{name}.{inner}" if hasattr(value, "__all__") else name
        for name in oncelog.__all__
        if not is_error(value := getattr(oncelog, name))
        for inner in getattr(value, "__all__", [""])
    }
    assert names - shown == set()


def is_error(value: object) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, OncelogError)
        and value.__module__ == OncelogError.__module__
    )


def test_links_between_documents_lead_somewhere(root, documents):
    broken = [
        f"{name}: {target}"
        for name, text in documents.items()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        if not ((root / name).parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_every_file_and_folder_that_a_document_names_exists(documents, project_files):
    """Also by the end of its path, without its suffix: ``storage/log/``, ``log/tail``."""
    folders = {
        "/".join(parts[:count])
        for name in project_files
        for parts in [name.split("/")]
        for count in range(1, len(parts))
    }
    places = {*folders, *project_files, *(name.rsplit(".", 1)[0] for name in project_files)}
    ends = {
        "/".join(parts[start:])
        for place in places
        for parts in [place.split("/")]
        for start in range(len(parts))
    }
    beginnings = {folder.rpartition("/")[2] for folder in folders}
    missing = [
        f"{name}: {path}"
        for name, text in documents.items()
        for path in paths_in(text, beginnings)
        if path not in ends
    ]
    assert not missing, "\n".join(missing)


def paths_in(text: str, beginnings: set[str]) -> Iterator[str]:
    """What a document puts in backticks and means as a file or a folder of the project.

    It ends like a source file, or begins with the name of a folder. What has a word in capitals
    is a pattern (``bench/NAME.py``), unless it is a document (``README.md``).
    """
    for span in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)):
        for word in span.split():
            path = word.removeprefix("./").rstrip("/")
            if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", path) or PATTERN_PATH.search(path):
                continue
            is_file = re.fullmatch(r".*\w\.(java|md|pxi|py|pyi|pyx|toml|yaml)", path)
            if is_file or ("/" in word and path.split("/")[0] in beginnings):
                yield path


def test_every_test_that_a_document_names_exists(documents, sources):
    there = {
        name
        for source in sources
        if source.path.startswith("tests/")
        for name in (
            source.path.split("/")[-1].removesuffix(".py"),
            *re.findall(r"\bdef (test_\w+)", source.text),
        )
    }
    missing = [
        f"{name}: {test}"
        for name, text in documents.items()
        for test in TEST_NAME.findall(text)
        if test not in there
    ]
    assert not missing, "\n".join(missing)


def test_invariants_are_those_that_the_code_cites(invariant_rows, product):
    cited = {number for source in product for number in re.findall(r"\bI-\d\d\b", source.text)}
    assert cited
    assert [row[0] for row in invariant_rows] == sorted(cited)


def test_invariants_are_asserted_where_the_page_says(invariant_rows, product):
    told = {(row[0], module) for row in invariant_rows for module in named_in(row[3])}
    assert told == {
        (str(node.args[1].value), "/".join(source.path.removesuffix(".py").split("/")[-2:]))
        for source in product
        for node in source.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "invariant"
        and isinstance(node.args[1], ast.Constant)
    }


def test_the_tests_of_an_invariant_are_there(invariant_rows, sources):
    """Named by file, with its folder where several have the name; others are told in words."""
    there = [source.path.removesuffix(".py") for source in sources]
    named = {test for row in invariant_rows for test in named_in(row[4]) if "test_" in test}
    assert len(named) > 20
    assert {
        test: found
        for test in named
        if len(found := [path for path in there if path.endswith(f"/{test}")]) != 1
    } == {}


def test_every_checker_of_the_simulator_is_named_with_what_it_watches(
    documents, invariant_rows, sources
):
    simulator = [source for source in sources if source.path.startswith("tests/sim/sim_")]
    checkers = {name for source in simulator for name in checkers_of(source)}
    watchers = {name for row in invariant_rows for name in named_in(row[5])}
    elsewhere = documents["docs/INVARIANTS.md"].split("The remaining checkers")[1]
    assert "LostRecords" in checkers
    assert "EarlyCompletions" in checkers
    assert watchers | named_in(elsewhere) == checkers


def named_in(text: str) -> set[str]:
    return set(named_list(text))


def checkers_of(source) -> set[str]:
    """Checker classes, and the names under which others tell what they found."""
    return {
        node.name
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and "Checker" in map(ast.unparse, node.bases)
    } | {
        str(node.args[0].value)
        for node in source.nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"self._found", "Violation"}
        and isinstance(node.args[0], ast.Constant)
    }


def test_the_table_of_messages_has_each_request_once(documents, product):
    """Between actors, or from a client to an actor; ``cluster.process`` has its own."""
    defined = [
        ast.literal_eval(statement.value)
        for source in product
        if re.fullmatch(r"actors/protocol/messages/\w+\.py", source.path)
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "method"
    ]
    section = documents["docs/ARCHITECTURE.md"].split("## Messages")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:3] == "| `"]
    assert len(defined) > 20
    assert sorted(name for row in rows for name in named_list(row[0])) == sorted(defined)


def named_list(text: str) -> list[str]:
    return re.findall(r"`([\w/]+)`", text)


def test_every_command_that_a_document_names_exists(root, documents):
    script = (root / "run").read_text(encoding="utf-8")
    known = re.search(r'^COMMANDS="([^"]*)"', script, re.MULTILINE)
    commands = {words.split()[0] for words in known.group(1).split(", ")}
    named = {
        command
        for text in documents.values()
        for command in re.findall(r"\./run ([a-z-]+[a-z])", text)
    }
    assert {"demo", "test"} <= named
    assert named <= commands


def test_every_command_of_oncelog_that_a_document_shows_has_these_options(documents):
    """In backticks or in a block of commands; also without ``oncelog``: ``groups list``."""
    shown = [
        (name, command)
        for name, text in documents.items()
        for command in [
            *re.findall(r"`([^`]+)`", FENCE.sub("", text)),
            *re.findall(r"\boncelog .*", "".join(filter(is_shell, FENCE.findall(text)))),
        ]
    ]
    wrong = [f"{name}: {command}" for name, command in shown if not is_accepted(command)]
    assert len(shown) > 100
    assert not wrong, "\n".join(wrong)


def is_shell(block: str) -> bool:
    return block.startswith("```\n")


def is_accepted(shown: str) -> bool:
    """Whether the command line knows the commands and options in a text, if it is a command."""
    first, *words = re.split(r" [#|] ", shown)[0].split() or [""]
    command: click.Command = program
    if not first.endswith("oncelog"):
        if commands_of(command).get(first) is None or not words or words[0] == "→":
            return True
        words.insert(0, first)
    while words and (known := commands_of(command)):
        if words[0].isupper() or words[0].startswith("-"):
            break
        if words[0] not in known:
            return False
        command = known[words.pop(0)]
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    return options <= {"--help", "--version", *options_of(command)}


@functools.cache
def commands_of(command: click.Command) -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {}
    ctx = click.Context(command)
    return {name: command.get_command(ctx, name) for name in command.list_commands(ctx)}


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_the_versions_that_spark_is_said_to_be_tried_with_are_those_that_are_installed(
    root, documents
):
    row = re.compile(r"^\| [\w ]+ \(`(\w+)`\) \| ([\w.]+) \| ([\w. ]+) \|$", re.MULTILINE)
    told = row.findall(documents["docs/SPARK.md"])
    assert [package for package, _, _ in told] == ["pyspark", "raydp", "ray"]
    lock = (root / "requirements.lock").read_text(encoding="utf-8")
    settings = (root / "pyproject.toml").read_text(encoding="utf-8")
    low, high = re.search(r'"ray\[default\]>=(2\.\d+)\.0,<2\.(\d+)"', settings).groups()
    for package, tried, allowed in told:
        assert tried == metadata.version(package)
        assert allowed == (f"{low} to 2.{int(high) - 1}" if package == "ray" else tried)
        assert f"\n{package}=={tried} \\\n" in lock


def test_a_test_that_runs_the_python_of_a_page_names_it(documents, sources):
    tests = [
        source.text for source in sources if source.path.startswith(("tests/ray/", "tests/spark/"))
    ]
    shown = [name for name, text in documents.items() if "\n```python\n" in text]
    missing = [name for name in shown if f'{name.removeprefix("docs/")}"' not in "".join(tests)]
    assert len(shown) > 5
    assert not missing, "\n".join(missing)


def test_the_ray_data_of_the_quickstart_is_that_of_the_example(root, documents):
    section = documents["docs/quickstart.md"].split("\n## From Ray Data\n")[1].split("\n## ")[0]
    (shown,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    example = (root / "examples/ray_data.py").read_text(encoding="utf-8")
    missing = [line for line in shown.splitlines() if f"    {line}\n" not in example]
    assert not missing
