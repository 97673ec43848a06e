"""What other rooms may use."""

import zabd.znode_tree


def test_the_public_names() -> None:
    """What is not in here may change at any time."""
    assert zabd.znode_tree.__all__ == sorted(zabd.znode_tree.__all__)
    assert all(hasattr(zabd.znode_tree, name) for name in zabd.znode_tree.__all__)
