"""Between the paths a user sees and the paths a server has: the chroot is the client's business."""

from zabd.model.ops import Multi, MultiOp, Op
from zabd.model.paths import ROOT, check_path


class Chroot:
    """Prefixes what goes out, strips what comes in; ``/`` does neither."""

    def __init__(self, path: str = ROOT) -> None:
        check_path(path)
        self.path = path
        self._prefix = "" if path == ROOT else path

    def __bool__(self) -> bool:
        return bool(self._prefix)

    def to_server(self, path: str) -> str:
        """The server's path for a user's path, which has to start with ``/``."""
        if not self._prefix:
            return path
        return self._prefix if path == ROOT else self._prefix + path

    def to_user(self, path: str) -> str:
        """The user's path for a server's path; a path outside of the chroot stays as it is."""
        if not self._prefix or not path.startswith(self._prefix):
            return path
        rest = path[len(self._prefix) :]
        if not rest:
            return ROOT
        return rest if rest[0] == "/" else path

    def multi(self, ops: tuple[MultiOp, ...]) -> Multi:
        """A multi of ops with users' paths."""
        if not self._prefix:
            return Multi(ops)
        return Multi(tuple(op._replace(path=self.to_server(op.path)) for op in ops))

    def op(self, op: Op) -> Op:
        """The op with the server's path in the place of the user's, if it has one."""
        if not self._prefix:
            return op
        if isinstance(op, Multi):
            return self.multi(op.ops)
        path = getattr(op, "path", None)
        if path is None:
            return op
        return op._replace(path=self.to_server(path))  # type: ignore[call-arg]
