"""What is played on both brokers, by topic?

The one rule: every public function of a module here is a script; its name is a sentence about what a client sees.
A script asserts nothing. It is right if RabbitMQ says the same.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any


def all_scripts() -> Mapping[str, Callable[[Any], None]]:
    """Every script by `topic.name`."""
    found: dict[str, Callable[[Any], None]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                found[f"{module_info.name}.{name}"] = function
    return found
