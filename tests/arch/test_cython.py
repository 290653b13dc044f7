"""What is compiled, beside what all sources are asked: the layout of a batch, and descriptions."""

from __future__ import annotations

import ast
import re
import struct
from itertools import accumulate

from oncelog.storage.records import layout

LAYOUT = "storage/records/_layout.pxi"
CRC = "storage/records/_kernel_crc.pxi"
"""It steps over bytes, whatever they are."""
CONSTANT = re.compile(r"^    ([A-Z0-9_]+) = (\w+)$", re.MULTILINE)
PLACE = re.compile(r"\bat \+ [1-9]\d|\bat\[[1-9]\d\]")
FUNCTION_NAME = re.compile(r"_?[a-z][a-z0-9_]*|__[a-z]+__")
OPENING = re.compile(r'(# cython: .*\n)*("""|# )[A-Z`]')


def test_the_layout_of_a_batch_is_the_same_in_python_and_c(compiled):
    (text,) = (source.text for source in compiled if source.path == LAYOUT)
    assert {name: int(value, 0) for name, value in CONSTANT.findall(text)} == {
        name: value for name, value in vars(layout).items() if name.isupper() and type(value) is int
    }


def test_the_layout_of_a_batch_is_that_of_its_fields():
    sizes = [struct.calcsize(">" + field) for field in layout.HEADER.format.removeprefix(">")]
    assert list(accumulate(sizes, initial=0)) == [
        0,
        layout.LENGTH_AT,
        layout.LEADER_EPOCH_AT,
        layout.MAGIC_AT,
        layout.CRC_AT,
        layout.ATTRIBUTES_AT,
        layout.LAST_OFFSET_DELTA_AT,
        layout.BASE_TIMESTAMP_AT,
        layout.MAX_TIMESTAMP_AT,
        layout.PRODUCER_AT,
        layout.PRODUCER_AT + 8,
        layout.PRODUCER_AT + 10,
        layout.RECORD_COUNT_AT,
        layout.HEADER_BYTES,
    ]
    assert layout.LENGTH_END == layout.LEADER_EPOCH_AT
    assert layout.CHECKED_AT == layout.ATTRIBUTES_AT


def test_a_field_of_a_batch_is_read_by_the_name_of_its_place(compiled):
    names = set(CONSTANT.findall(next(each.text for each in compiled if each.path == LAYOUT)))
    wrong = [
        source.path
        for source in compiled
        if source.path not in (LAYOUT, CRC)
        and (PLACE.search(source.text) or names & set(CONSTANT.findall(source.text)))
    ]
    assert not wrong, "\n".join(wrong)


def test_compiled_functions_have_names_of_python(compiled):
    names = [
        (name, f"{source.path}:{line} {name}")
        for source in compiled
        for line, name, _ in source.functions()
    ]
    assert len(names) > 80
    wrong = [where for name, where in names if not FUNCTION_NAME.fullmatch(name)]
    assert not wrong, "\n".join(wrong)


def test_a_compiled_file_says_what_it_is(compiled):
    wrong = [source.path for source in compiled if not OPENING.match(source.text)]
    assert not wrong, "\n".join(wrong)


def test_what_python_sees_of_compiled_code_is_described(root, compiled):
    """In the ``.pyi`` beside it, with a docstring for each function: type checkers read that."""
    texts = {source.path: source.text for source in compiled}
    wrong = []
    for path, text in texts.items():
        if not path.endswith(".pyx"):
            continue
        folder = path.rpartition("/")[0]
        for part in re.findall(r'^include "(\w+\.pxi)"$', text, re.MULTILINE):
            text += texts[f"{folder}/{part}"]
        stub = ast.parse((root / path).with_suffix(".pyi").read_text(encoding="utf-8"))
        described = {
            node.name
            for node in stub.body
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
        }
        seen = set(re.findall(r"^def (\w+)", text, re.MULTILINE))
        wrong += [f"{path}: {name}" for name in sorted(seen - described)]
    assert not wrong, "\n".join(wrong)
