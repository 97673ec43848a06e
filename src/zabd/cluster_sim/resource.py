"""Something outside of the ensemble that a lock protects, which may look at fencing tokens."""


class Resource:
    """A file, a row, an account. A picture shows each write of it, with the token it came with.

    It refuses a token lower than the highest it has seen; with `fenced=False` it takes everything,
    as most things do, and `late` counts what it should not have taken.
    """

    def __init__(self, *, fenced: bool = True) -> None:
        self.fenced = fenced
        self.token = 0
        self.accepted = 0
        self.refused = 0
        self.late = 0

    def write(self, token: int) -> bool:
        """Whether the write is accepted."""
        if token < self.token and self.fenced:
            self.refused += 1
            return False
        self.late += token < self.token
        self.token = max(self.token, token)
        self.accepted += 1
        return True
