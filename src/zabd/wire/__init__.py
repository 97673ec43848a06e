"""The client protocol: bytes to the words of `zabd.model` and back, without I/O.

`connection` has both ends of a connection; `frames`, `requests` and `replies` are what they are
made of, and what a hot path uses directly. Behind them, `opcodes` is the table of all operations,
`records`, `results` and `multi` hold the records, `jute` the encoding.
"""

from zabd.wire.connection import (
    FOUR_LETTER_WORDS,
    OUTSTANDING_MAX,
    ClientConnection,
    Event,
    FourLetterWord,
    Reply,
    ServerConnection,
)
from zabd.wire.frames import REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, FrameError, FrameReader, frame
from zabd.wire.replies import (
    EVENT_XID,
    NO_ZXID,
    decode_connect_response,
    decode_reply_header,
    decode_result,
    decode_watch_event,
    encode_connect_response,
    encode_result,
    get_data_reply,
    path_reply,
    reply,
    stat_reply,
    watch_event,
)
from zabd.wire.requests import (
    AUTH_XID,
    PING_XID,
    SET_WATCHES_XID,
    Request,
    decode_connect,
    decode_header,
    decode_op,
    decode_path_watch,
    decode_request,
    encode_connect,
    encode_request,
)

__all__ = [
    "AUTH_XID",
    "EVENT_XID",
    "FOUR_LETTER_WORDS",
    "NO_ZXID",
    "OUTSTANDING_MAX",
    "PING_XID",
    "REQUEST_BYTES_MAX",
    "RESPONSE_BYTES_MAX",
    "SET_WATCHES_XID",
    "ClientConnection",
    "Event",
    "FourLetterWord",
    "FrameError",
    "FrameReader",
    "Reply",
    "Request",
    "ServerConnection",
    "decode_connect",
    "decode_connect_response",
    "decode_header",
    "decode_op",
    "decode_path_watch",
    "decode_reply_header",
    "decode_request",
    "decode_result",
    "decode_watch_event",
    "encode_connect",
    "encode_connect_response",
    "encode_request",
    "encode_result",
    "frame",
    "get_data_reply",
    "path_reply",
    "reply",
    "stat_reply",
    "watch_event",
]
