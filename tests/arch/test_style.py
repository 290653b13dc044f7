"""Sizes, swallowed errors and left-overs: what a review should not have to look for."""

from __future__ import annotations

import ast
import re

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
BROAD = {"Exception", "BaseException"}


def test_a_long_file_of_the_product_says_why_it_is_one_idea(product, compiled):
    """Past the limit a reader asks "two ideas?"; a sentence at its top answers."""
    long = [
        f"{source.path}: {count} lines; split it, or say 'One file: …' in its docstring"
        for source in product
        if (count := source.text.count("\n")) > FILE_LINES_MAX
        and "\nOne file: " not in (ast.get_docstring(source.tree) or "")
    ]
    long += [
        f"{source.path}: {count} lines; split it, or say 'One file: …' at its top"
        for source in compiled
        if (count := source.text.count("\n")) > FILE_LINES_MAX
        and "One file: " not in source.text[:2_000]
    ]
    assert not long, "\n".join(long)


def test_a_long_function_of_the_product_says_why_it_is_one_thing(product, compiled):
    long = [
        f"{source.path}:{node.lineno} {node.name}: {count} lines; split it, or say '# One thing: …'"
        for source in product
        for node in source.nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (count := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
        and "# One thing: " not in (ast.get_source_segment(source.text, node) or "")
    ]
    long += [
        f"{source.path}:{line} {name}: {count} lines; split it, or say '# One thing: …'"
        for source in compiled
        for line, name, text in source.functions()
        if (count := text.count("\n") + 1) > FUNCTION_LINES_MAX and "# One thing: " not in text
    ]
    assert not long, "\n".join(long)


def test_no_error_is_swallowed(sources):
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in sources
        for node in source.nodes
        if (isinstance(node, ast.ExceptHandler) and swallows(node)) or suppresses_all(node)
    ]
    assert not wrong, "\n".join(wrong)


def swallows(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(caught & BROAD) and all(
        isinstance(statement, (ast.Pass, ast.Continue))
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in handler.body
    )


def suppresses_all(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and any(isinstance(argument, ast.Name) and argument.id in BROAD for argument in node.args)
        and ast.unparse(node.func).endswith("suppress")
    )


def test_product_code_asserts_only_what_a_type_checker_needs(product):
    """``assert`` is gone under ``-O``; ``invariant`` stays. ``is not None`` narrows a type."""
    wrong = [
        f"{source.path}:{node.lineno} {ast.unparse(node)}"
        for source in product
        for node in source.nodes
        if isinstance(node, ast.Assert)
        and not ast.unparse(node.test).endswith(" is not None")
        and not ast.unparse(node.test).startswith("isinstance(")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_error_is_swallowed_in_compiled_code(compiled):
    swallowing = re.compile(
        r"^ *except(?: *:| (?:Base)?Exception\b[^:\n]*:\s*\n\s*(?:pass|continue)\b)", re.MULTILINE
    )
    wrong = [source.path for source in compiled if swallowing.search(source.text)]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_left_for_later(sources, compiled):
    words = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X"))
    word = re.compile(rf"(#|/\*).*\b({words})\b")
    wrong = [
        f"{source.path}:{number}"
        for source in (*sources, *compiled)
        for number, line in enumerate(source.text.splitlines(), 1)
        if word.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_test_can_fail(sources):
    """A test holds an assertion or expects an exception."""
    wrong = [
        f"{source.path}:{node.lineno} {node.name}"
        for source in sources
        if source.path.startswith("tests/")
        for node in source.nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
        and not re.search(r"\bassert\b|raises\(|\b(assert|check|expect|verify)_", ast.unparse(node))
    ]
    assert not wrong, "\n".join(wrong)
