"""The public surface: what may be imported from where, name by name.

The names themselves stand in `public_names.txt`, one a line, so that a change of the surface is a
change of that file, and is seen by whoever reads the change.
"""

import importlib
import pkgutil
from pathlib import Path

import pytest

import zabd

NAMES = Path(__file__).with_name("public_names.txt")
PUBLIC = [
    "zabd.client",
    "zabd.client.integrations.asgi",
    "zabd.client.integrations.messages",
    "zabd.client.integrations.opentelemetry",
    "zabd.client.integrations.prometheus",
    "zabd.client.metrics",
    "zabd.client.recipes",
    "zabd.client.recipes.dedup",
    "zabd.cluster_sim",
    "zabd.model",
    "zabd.server",
    "zabd.testing",
    "zabd.zab",
    "zabd.zab.effects",
    "zabd.zab.events",
    "zabd.zab.messages",
    "zabd.znode_tree",
    "zabd.znode_tree.txns",
]
ROOMS = [f"zabd.{module.name}" for module in pkgutil.iter_modules(zabd.__path__)]


def exported(module: str) -> list[str]:
    """The names that a module offers, in full."""
    return [f"{module}.{name}" for name in importlib.import_module(module).__all__]


def test_the_public_names_are_those_on_the_list() -> None:
    """Somebody imports each of them; what is not on the list may change at any time."""
    listed = NAMES.read_text("utf-8").splitlines()

    assert listed == sorted(name for module in PUBLIC for name in exported(module))


@pytest.mark.parametrize("room", sorted({*PUBLIC, *ROOMS} - {"zabd.cli"}))
def test_everything_that_is_offered_is_there(room: str) -> None:
    """A name in `__all__` that is not there breaks whoever imports all of them."""
    module = importlib.import_module(room)

    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize("name", ["effects", "events", "messages"])
def test_the_words_of_a_peer_are_complete(name: str) -> None:
    """A host or a search has to know every event, effect and message there is."""
    module = importlib.import_module(f"zabd.zab.{name}")
    defined = {
        word
        for word, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not word.startswith("_")
    }

    assert defined
    assert defined <= set(module.__all__)
