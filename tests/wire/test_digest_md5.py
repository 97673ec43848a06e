"""SASL DIGEST-MD5: the RFC's own examples, what ZooKeeper has said, and who is turned away."""

import json
from pathlib import Path
from random import Random
from time import process_time

import pytest

from zabd.model.errors import AuthFailedError
from zabd.wire.digest_md5 import (
    REALM,
    SERVICE,
    TOKEN_BYTES_MAX,
    ClientExchange,
    Proof,
    ServerExchange,
    Users,
    directives,
    secret_of,
)

VECTORS = Path(__file__).with_name("vectors") / "sasl.jsonl"
USERS = Users({"bob": "secret", "Jürgen": "pässword", "Юра": "пароль"})


def pair(user: str = "bob", password: str = USERS["bob"]) -> tuple[ServerExchange, ClientExchange]:
    """Two ends that have not spoken yet."""
    return ServerExchange(USERS, Random(1)), ClientExchange(user, password, Random(2))


@pytest.mark.parametrize(
    ("service", "nonce", "cnonce", "response", "rspauth"),
    [
        (
            b"imap/elwood.innosoft.com",
            b"OA6MG9tEQGm2hh",
            b"OA6MHXh6VqTrRk",
            b"d388dad90d4bbd760a152321f2143af7",
            b"ea40f60335c427b5527b84dbabcdfffd",
        ),
        (
            b"acap/elwood.innosoft.com",
            b"OA9BSXrbuRhWay",
            b"OA9BSuZWMSpW8m",
            b"6084c6db3fede7352c551284490fd0fc",
            b"2f0b3d7c3c2e486600ef710726aa2eae",
        ),
    ],
)
def test_the_examples_of_the_rfc(
    service: bytes, nonce: bytes, cnonce: bytes, response: bytes, rspauth: bytes
) -> None:
    """RFC 2831, section 4: user chris, password secret."""
    proof = Proof(secret_of("chris", "elwood.innosoft.com", "secret"), nonce, cnonce, service)
    assert (proof.of_client, proof.of_server) == (response, rspauth)


def test_what_zookeeper_has_answered_is_what_we_answer() -> None:
    """An exchange on record, of kazoo with ZooKeeper 3.8.0; its user is jaas."""
    lines = [json.loads(line)["decoded"] for line in VECTORS.read_text("utf-8").splitlines()[:2]]
    tokens = [
        bytes.fromhex(line[side]["body"]["token"]["hex"])
        for line in lines
        for side in ("request", "response")
    ]
    assert tokens[0] == b""
    challenge, response, rspauth = (directives(token) for token in tokens[1:])
    assert challenge.keys() == {"realm", "nonce", "charset", "algorithm"}
    assert (challenge["realm"], response["digest-uri"]) == (REALM.encode(), SERVICE)
    assert rspauth.keys() == {"rspauth"}
    first = ServerExchange(USERS, Random(1)).step(b"")
    assert directives(first).keys() == challenge.keys()


@pytest.mark.parametrize("user", USERS)
def test_both_ends_are_proved(user: str) -> None:
    """Also where Latin-1 is too narrow, and where it is not."""
    server, client = pair(user, USERS[user])

    answer = client.step(server.step(b""))
    assert answer is not None
    assert server.user is None
    assert client.step(server.step(answer)) is None

    assert server.user == user


@pytest.mark.parametrize(("user", "password"), [("bob", "wrong"), ("eve", "secret"), ("eve", "")])
def test_who_has_another_password_proves_nothing(user: str, password: str) -> None:
    """Whether there is such a user is not told."""
    server, client = pair(user, password)
    answer = client.step(server.step(b""))

    with pytest.raises(AuthFailedError, match="has not proved a password") as raised:
        server.step(answer or b"")
    assert server.user is None
    assert "secret" not in str(raised.value)


def test_an_answer_counts_for_its_own_challenge_and_once() -> None:
    """Who has listened cannot come back with what was said."""
    server, client = pair()
    answer = client.step(server.step(b"")) or b""
    server.step(answer)
    with pytest.raises(AuthFailedError):
        server.step(answer)

    other = ServerExchange(USERS, Random(7))
    other.step(b"")
    with pytest.raises(AuthFailedError, match="nonce"):
        other.step(answer)


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    """The client would otherwise believe what it reads there."""
    client = ClientExchange("bob", "secret", Random(2))
    impostor = ServerExchange({"bob": "guess"}, Random(1))
    client.step(impostor.step(b""))
    with pytest.raises(AuthFailedError, match="the server has not proved"):
        client.step(b"rspauth=" + b"0" * 32)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"realm", b'"elsewhere"'),
        (b"nc", b"00000002"),
        (b"qop", b"auth-conf"),
        (b"digest-uri", b'"zookeeper/elsewhere"'),
        (b"authzid", b'"super"'),
    ],
)
def test_what_an_answer_says_of_itself_is_checked(name: bytes, value: bytes) -> None:
    """Nobody is somebody else, elsewhere, or protected in a way that we do not offer."""
    server, client = pair()
    answer = client.step(server.step(b"")) or b""
    parts = [part for part in answer.split(b",") if not part.startswith(name + b"=")]

    with pytest.raises(AuthFailedError, match=name.decode()):
        server.step(b",".join([*parts, name + b"=" + value]))


@pytest.mark.parametrize(
    "token", [b"x", b"nonce", b'username="bob', b"\xff=\xff", b"a=b" * TOKEN_BYTES_MAX, b"a=b,,;"]
)
def test_noise_is_no_answer(token: bytes) -> None:
    """It ends the exchange, whatever it is."""
    server, _ = pair()
    server.step(b"")
    with pytest.raises(AuthFailedError):
        server.step(token)


@pytest.mark.parametrize("token", [b"a" * 4096, b"a=" * 2047 + b'"', b"," * 4095 + b'"'])
def test_noise_takes_no_longer_than_it_is(token: bytes) -> None:
    """A millisecond and not a tenth of a second: anybody may send it, many times."""
    begun_s = process_time()
    for _ in range(30):
        with pytest.raises(AuthFailedError):
            directives(token)
    assert process_time() - begun_s < 1


def test_quotes_may_hold_commas_and_quotes() -> None:
    """As names may."""
    assert directives(rb' a = "x\",y\\" ,b=z, ') == {"a": rb'x",y' + b"\\", "b": b"z"}


def test_passwords_are_not_shown() -> None:
    """A configuration is printed now and then."""
    assert repr(USERS) == "Users(bob, Jürgen, Юра)"
