"""Who a connection is, and what an ACL lets it do."""

import pytest

from zabd.model.acl import (
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    READ_ACL_UNSAFE,
    Acl,
    Identity,
    Perms,
    make_digest_id,
)
from zabd.model.errors import AuthFailedError, InvalidAclError
from zabd.znode_tree import allowed, authenticate, expand_acl, user_of, visible_acl
from zabd.znode_tree.permissions import ACL_CHARS_MAX, ACL_ENTRIES_MAX

ALICE = Identity("digest", make_digest_id("alice", "secret"))
HERE = Identity("ip", "10.1.2.3")
SUPER = Identity("super", "")


def test_one_matching_entry_with_a_wanted_bit_is_enough() -> None:
    """Entries add up; none takes anything away."""
    acl = (Acl(Perms.READ, "world", "anyone"), Acl(Perms.WRITE, *ALICE))

    assert allowed(acl, Perms.READ, ())
    assert not allowed(acl, Perms.WRITE, (HERE,))
    assert allowed(acl, Perms.WRITE, (HERE, ALICE))
    assert allowed(acl, Perms.READ | Perms.ADMIN, ())
    assert not allowed(acl, Perms.ADMIN, (ALICE,))


def test_super_may_do_everything_and_an_empty_acl_refuses_nobody() -> None:
    """Neither can be stored by a client: they are the operator's."""
    assert allowed((Acl(0, "world", "anyone"),), Perms.DELETE, (SUPER,))
    assert allowed((), Perms.DELETE, ())


def test_an_unknown_scheme_means_nobody() -> None:
    """A member that lacks a scheme must not let its ids in."""
    assert not allowed((Acl(31, "kerberos", "x"),), 31, (Identity("kerberos", "x"),))


@pytest.mark.parametrize(
    ("entry", "address", "matches"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.9.9.9/8", "10.0.0.1", True),
        ("0.0.0.0/0", "1.2.3.4", True),
        ("0.0.0.0/0", "::1", False),
        ("::/0", "::1", True),
        ("2001:db8::/32", "2001:db8:1::5", True),
        ("2001:db8::/32", "2001:db9::5", False),
        ("10.0.0.0/8", "somewhere", False),
    ],
)
def test_ip_entries_match_under_their_mask(entry: str, address: str, *, matches: bool) -> None:
    """Both sides are cut to the mask, and the families must agree."""
    assert allowed((Acl(31, "ip", entry),), 31, (Identity("ip", address),)) is matches


def test_auth_becomes_who_the_connection_is() -> None:
    """Its id is ignored; an address proves nothing, so it does not count."""
    bob = Identity("digest", "bob:x")

    assert expand_acl((Acl(5, "auth", "ignored"),), (HERE, ALICE, bob)) == (
        Acl(5, *ALICE),
        Acl(5, *bob),
    )
    with pytest.raises(InvalidAclError):
        expand_acl(CREATOR_ALL_ACL, (HERE, SUPER))


def test_duplicates_go_and_the_order_stays() -> None:
    """Different rights for one id are no duplicates; unknown bits are kept."""
    acl = (Acl(1, "world", "anyone"), Acl(64, *ALICE), Acl(1, "world", "anyone"), Acl(2, *ALICE))

    assert expand_acl(acl, ()) == (acl[0], acl[1], acl[3])
    assert expand_acl((Acl(31, "world", "anyone"),), ()) is OPEN_ACL_UNSAFE


@pytest.mark.parametrize(
    "acl",
    [
        None,
        (),
        (Acl(31, "world", "everyone"),),
        (Acl(31, "super", ""),),
        (Acl(31, "", ""),),
        (Acl(31, "nonsense", "x"),),
        (Acl(31, "digest", "alice"),),
        (Acl(31, "digest", "alice:"),),
        (Acl(31, "digest", "alice:a:b"),),
        (Acl(31, "ip", "10.0.0.0/33"),),
        (Acl(31, "ip", "10.0.0.0/"),),
        (Acl(31, "ip", "10.0.0.0/255.0.0.0"),),
        (Acl(31, "ip", "10.0.0.0/99999999999999999999"),),
        (Acl(31, "ip", "host"),),
        (Acl(31, "ip", ""),),
        tuple(Acl(n, "world", "anyone") for n in range(ACL_ENTRIES_MAX + 1)),
        (Acl(31, "digest", "a:" + "x" * ACL_CHARS_MAX),),
        (*OPEN_ACL_UNSAFE, Acl(31, "world", "nobody")),
    ],
)
def test_an_acl_for_nobody_or_beyond_the_limits_is_refused(acl: tuple[Acl, ...] | None) -> None:
    """P11: what cannot be matched, and what is only there to cost memory, is not stored."""
    with pytest.raises(InvalidAclError):
        expand_acl(acl, (HERE, ALICE))


MANY = tuple(Identity("digest", f"user{number}:x") for number in range(60))


@pytest.mark.parametrize(
    ("acl", "identities"),
    [
        (tuple(Acl(perms, "auth", "") for perms in range(1, 20)), MANY),
        ((Acl(31, "auth", ""),), (Identity("digest", "a:" + "x" * ACL_CHARS_MAX),)),
    ],
)
def test_an_acl_is_no_larger_for_saying_auth(
    acl: tuple[Acl, ...], identities: tuple[Identity, ...]
) -> None:
    """The limits hold of what is stored: a few bytes may stand for all of a connection."""
    with pytest.raises(InvalidAclError):
        expand_acl(acl, identities)


def test_auth_that_is_said_again_costs_nothing() -> None:
    """What it stands for is stored once for each set of rights."""
    acl = tuple(Acl(31, "auth", str(number)) for number in range(ACL_ENTRIES_MAX))

    assert len(expand_acl(acl, MANY)) == len(MANY)


def test_only_who_may_change_the_acl_sees_its_hashes() -> None:
    """A hash can be searched for its password at leisure."""
    acl = (Acl(Perms.ALL, *ALICE), Acl(Perms.READ, "ip", "10.0.0.0/8"))

    assert visible_acl(acl, (ALICE,)) == acl
    assert visible_acl(acl, (SUPER,)) == acl
    assert visible_acl(acl, (HERE,)) == (Acl(Perms.ALL, "digest", "alice:x"), acl[1])
    assert visible_acl(READ_ACL_UNSAFE, ()) == READ_ACL_UNSAFE


def test_digest_credentials_become_an_identity() -> None:
    """Hashed, so that the password is nowhere but in the packet."""
    assert authenticate("digest", b"alice:secret", address="::1") == (ALICE,)
    assert authenticate("digest", b"alice:secret", address="::1", super_digest=ALICE.id) == (
        ALICE,
        SUPER,
    )
    [(scheme, id)] = authenticate("digest", b"alice", address="::1")
    assert (scheme, id.partition(":")[0]) == ("digest", "alice")
    assert id != make_digest_id("alice", "")
    assert user_of(ALICE) == "alice"


def test_the_ip_scheme_adds_the_address() -> None:
    """It is what the connection has anyway; clients may still ask."""
    assert authenticate("ip", b"anything", address="10.1.2.3") == (HERE,)
    assert user_of(HERE) == "10.1.2.3"


@pytest.mark.parametrize("scheme", ["world", "super", "sasl", "", "x" * 10_000])
def test_other_schemes_take_no_credentials(scheme: str) -> None:
    """Above all, nobody becomes super by asking for it."""
    with pytest.raises(AuthFailedError):
        authenticate(scheme, b"", address="::1")
