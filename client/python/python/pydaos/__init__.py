"""The names of DAOS's package for Python, for programs that import them. ``weir`` is what they stand for."""

from __future__ import annotations

from typing import Any

import weir
from weir import Array as DArray
from weir import Dict as DDict

__all__ = ["DArray", "DCont", "DDict", "DObjNotFound", "PyDError"]

DObjNotFound = weir.NotFound
PyDError = weir.Error

_SCHEMES = ("daos://", "weir://")


class DCont(weir.Container):
    """A container, by the labels of pool and container, or by a path ``daos://POOL/CONTAINER``."""

    def __init__(self, pool: str | None = None, cont: str | None = None, path: str | None = None) -> None:
        if path is not None:
            scheme = next((scheme for scheme in _SCHEMES if path.startswith(scheme)), None)
            parts = path[len(scheme):].strip("/").split("/") if scheme else []
            if len(parts) != 2 or pool is not None or cont is not None:
                raise ValueError("give pool and container, or a path daos://POOL/CONTAINER")
            pool, cont = parts
        if not pool or not cont:
            raise ValueError("give pool and container, or a path daos://POOL/CONTAINER")
        super().__init__(pool, cont)

    def __reduce__(self) -> Any:
        return DCont, self._names[:2]

    def get(self, name: str, *default: Any) -> Any:
        """The dictionary or array of a name."""
        return super().get(name, *default) if default else self[name]
