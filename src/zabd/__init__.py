"""A ZooKeeper you can ``pip install``: a replicated tree of znodes in pure Python."""
