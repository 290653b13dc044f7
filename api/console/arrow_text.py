"""A program that reads one Arrow IPC stream or file from standard input and writes it as text.

A process of its own, with little memory and time: the bytes are anybody's, and reading them is
left to a large library in C++. Run by path, so that it loads nothing of oncelog.
"""

from __future__ import annotations

import resource
import sys

MEMORY_MAX_BYTES = 2_147_483_648
CPU_MAX_S = 5
ROWS_MAX = 50
CELL_CHARS_MAX = 200


def main() -> int:
    """Write the schema and the first rows; exit status 1 with a line of why it is no Arrow."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pyarrow as pa

    data = sys.stdin.buffer.read()
    try:
        buffer = pa.py_buffer(data)
        is_file = data.startswith(b"ARROW1")
        opened = pa.ipc.open_file(buffer) if is_file else pa.ipc.open_stream(buffer)
        table = opened.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        sys.stderr.write(f"no Arrow IPC: {error}\n")
        return 1
    lines = [f"{table.num_rows:,} rows", ""]
    lines += [f"{field.name}: {field.type}" for field in table.schema]
    for number, row in enumerate(table.slice(0, ROWS_MAX).to_pylist()):
        lines += ["", f"row {number}"]
        lines += [f"  {name} = {repr(value)[:CELL_CHARS_MAX]}" for name, value in row.items()]
    if table.num_rows > ROWS_MAX:
        lines += ["", f"… {table.num_rows - ROWS_MAX:,} more rows"]
    sys.stdout.buffer.write("\n".join(lines).encode("utf-8", "backslashreplace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
