"""Members of a family as they are in this repository: other tests install third parties' ones beside them."""

from __future__ import annotations

import importlib
import pkgutil


def built_in(family: str) -> list[str]:
    package = importlib.import_module(f"tidemill.{family}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))
