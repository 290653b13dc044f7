"""Shows ``create_topic = blocking(AsyncAdmin.create_topic)`` as the method that it is.

mkdocstrings reads the source without running it, so it sees an attribute without a docstring.
This gives it the signature and docstring of the method of the asynchronous class.
"""

from __future__ import annotations

from typing import Any

import griffe


class Blocking(griffe.Extension):
    """Runs once the whole package is read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replace such attributes in all classes of the package."""
        for module in self._modules(pkg):
            for cls in list(module.classes.values()):
                if not cls.is_alias:
                    self._replace(module, cls)

    def _modules(self, module: griffe.Module) -> list[griffe.Module]:
        below = [each for each in module.modules.values() if not each.is_alias]
        return [module, *(found for each in below for found in self._modules(each))]

    def _replace(self, module: griffe.Module, cls: griffe.Class) -> None:
        for name, attribute in list(cls.attributes.items()):
            call = str(attribute.value or "")
            if attribute.is_alias or not call.startswith("blocking("):
                continue
            source, _, method = call.removeprefix("blocking(").removesuffix(")").rpartition(".")
            found = module.modules_collection[f"{module[source].canonical_path}.{method}"]
            copy = griffe.Function(
                name,
                parameters=found.parameters,
                returns=found.returns,
                docstring=found.docstring,
                lineno=attribute.lineno,
                endlineno=attribute.endlineno,
            )
            cls.set_member(name, copy)
