"""Errors of operations on objects. Those on files are ``OSError``."""


class Error(Exception):
    """An operation failed. ``der`` is the number of the error in DAOS's interface, e.g. 1005 for what does not exist."""

    def __init__(self, message: str, der: int) -> None:
        super().__init__(message, der)
        self.der = der

    def __str__(self) -> str:
        return self.args[0]


class NotFound(KeyError):
    """A container has no dictionary or array of a name."""
