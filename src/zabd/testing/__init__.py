"""Real ensembles and fault controls for test suites, as a pytest plugin.

`zabd.testing.plugin` is what pytest loads, in every run of every project that has zabd installed;
so nothing here is imported before a test asks for it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zabd.testing.ensemble import ZabEnsemble as ZabEnsemble

__all__ = ["ZabEnsemble"]


def __getattr__(name: str) -> object:
    if name == "ZabEnsemble":
        from zabd.testing.ensemble import ZabEnsemble

        return ZabEnsemble
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
