"""Every task and every thread has somebody who hears of its end.

The end of a task that nobody looks at is told by the collector, some time, in a line of the log;
what it did is not done from then on, and nothing else shows it.
"""

from __future__ import annotations

import ast

import pytest

TASKS = ("create_task", "ensure_future")
THREAD = "Thread"
OUTCOMES = ("result", "exception")

SEEN_ELSEWHERE = {
    ("actors/coordination/actor_watch.py", "_watch"): "check() takes the result of each",
    (
        "actors/gateway/transactions/enrolments.py",
        "_asked",
    ): "whoever waits for an answer gets what it raises",
    ("actors/rpc/actor_transport.py", "_begin"): "a task that only waits to be cancelled",
}
"""Who sees the end, where the function that starts a task does not say so: file, function → why."""


class Module:
    """One file: its functions by name, and each that starts a task or a thread."""

    def __init__(self, tree):
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        self.named = {function.name: function for function in functions}
        self.starts = [
            (innermost(functions, call), call)
            for call in calls_of(tree)
            if name_of(call.func) in (*TASKS, THREAD)
        ]

    def is_seen(self, function, call):
        """Whether ``function``, which makes ``call``, says who hears of the end."""
        if name_of(call.func) == THREAD:
            target = next((item.value for item in call.keywords if item.arg == "target"), None)
            return target is not None and self.is_guarded(name_of(target))
        names = names_given(function, call)
        return self.is_awaited(function, call, names) or self.has_callback(function, names)

    def is_guarded(self, name):
        """Whether what a thread runs is inside a ``try``: it ends as it says, or by no error."""
        body = self.named[name].body if name in self.named else []
        return any(isinstance(node, ast.Try) for item in body for node in ast.walk(item))

    def is_awaited(self, function, call, names):
        """Whether its outcome is awaited, or is waited for and then taken, in the same function."""
        awaited = [node.value for node in ast.walk(function) if isinstance(node, ast.Await)]
        for value in awaited:
            mentioned = mentions(value)
            if value is call or (isinstance(value, ast.Call) and call in value.args):
                return True
            if not names & mentioned:
                continue
            if name_of(getattr(value, "func", value)) != "wait" or takes_outcome(function):
                return True
        return False

    def has_callback(self, function, names):
        """Whether it is given a callback that looks at the outcome."""
        return any(
            name_of(given.func.value) in names and self.looks(function, given.args[0], set())
            for given in calls_of(function)
            if isinstance(given.func, ast.Attribute) and given.func.attr == "add_done_callback"
        )

    def looks(self, function, callback, known):
        """Whether a callback takes the outcome, itself or by what it calls."""
        if isinstance(callback, ast.Call):
            # functools.partial(callback, ...)
            return any(self.looks(function, argument, known) for argument in callback.args[:1])
        if isinstance(callback, ast.Lambda):
            return takes_outcome(callback)
        name = name_of(callback)
        local = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and name in map(name_of, node.targets)
        ]
        if local and name not in known:
            return self.looks(function, local[0], known | {name})
        if name in known or name not in self.named:
            return False
        body = self.named[name]
        return takes_outcome(body) or any(
            self.looks(body, inner.func, known | {name}) for inner in calls_of(body)
        )


def calls_of(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def name_of(node):
    """The last part of a name: ``task`` of ``self.task``."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return getattr(node, "attr", None) or getattr(node, "id", "")


def mentions(node):
    return {name_of(part) for part in ast.walk(node)} - {""}


def innermost(functions, call):
    around = [function for function in functions if call in ast.walk(function)]
    return max(around, key=lambda function: function.lineno)


def names_given(function, call):
    """What the task is called: all targets of the assignment that it is made in."""
    return {
        name_of(target)
        for node in ast.walk(function)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and call in ast.walk(node)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }


def takes_outcome(tree):
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr in OUTCOMES
        for call in calls_of(tree)
    )


def unseen_in(tree):
    module = Module(tree)
    return [
        (function.name, call.lineno)
        for function, call in module.starts
        if not module.is_seen(function, call)
    ]


def test_somebody_hears_of_the_end_of_every_task_and_thread(product):
    found = {
        (source.path, name): line
        for source in product
        if not source.path.startswith("examples/")
        for name, line in unseen_in(source.tree)
    }
    wrong = [
        f"{path}:{line} {name}: nobody hears of its end; spawn it with OwnTasks, await it here, "
        "or add a callback that looks at the outcome"
        for (path, name), line in found.items()
        if (path, name) not in SEEN_ELSEWHERE
    ]
    assert not wrong, "\n".join(wrong)
    assert SEEN_ELSEWHERE.keys() <= found.keys(), "what is not there needs no reason"


@pytest.mark.parametrize(
    ("body", "is_seen"),
    [
        ("self.task = loop.create_task(work())", False),
        (
            "task = create_task(work()); tasks.add(task); task.add_done_callback(tasks.discard)",
            False,
        ),
        ("self.task = create_task(work()); self.task.add_done_callback(self.wake)", False),
        ("self.task = create_task(work()); self.task.add_done_callback(self.ended)", True),
        (
            "self.task = create_task(work()); self.task.add_done_callback(partial(self.ended, 1))",
            True,
        ),
        ("self.task = create_task(work()); self.task.add_done_callback(self.relayed)", True),
        ("task = ensure_future(work()); await wait([task])", False),
        ("task = ensure_future(work()); await wait([task]); task.result()", True),
        ("self.calls[1] = task = ensure_future(work()); return await shield(task)", True),
        ("await create_task(work())", True),
        ("Thread(target=self.wake).start()", False),
        ("Thread(target=self.guarded).start()", True),
    ],
)
def test_the_end_of_a_task_is_seen_only_by_who_looks_at_its_outcome(body, is_seen):
    text = f"""
class Owner:
    async def start(self):
        {body}

    def wake(self, task):
        self.event.set()

    def ended(self, task):
        self.failure = task.exception()

    def relayed(self, task):
        self.ended(task)

    def guarded(self):
        try:
            work()
        finally:
            self.event.set()
"""
    assert bool(unseen_in(ast.parse(text))) is not is_seen
