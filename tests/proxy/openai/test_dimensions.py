import base64
import json
import math
import struct

import pytest

from proxy.errors import UpstreamBroken
from proxy.openai.dimensions import shortened

REPLY = b'{"object":"list","data":[{"embedding":[3,4,12],"index":0}],"usage":{"prompt_tokens":1}}'


def test_vectors_are_cut_and_have_length_1_again() -> None:
    told = json.loads(shortened(REPLY, 2, as_base64=False, socket_path="child"))

    assert told["data"] == [{"embedding": [0.6, 0.8], "index": 0}]
    assert (told["object"], told["usage"]) == ("list", {"prompt_tokens": 1})


def test_a_vector_that_has_no_more_is_whole() -> None:
    (row,) = json.loads(shortened(REPLY, 9, as_base64=False, socket_path="child"))["data"]

    assert row["embedding"] == pytest.approx([3 / 13, 4 / 13, 12 / 13])


def test_packed_they_are_little_endian_numbers() -> None:
    (row,) = json.loads(shortened(REPLY, 2, as_base64=True, socket_path="child"))["data"]

    vector = struct.unpack("<2f", base64.b64decode(row["embedding"]))
    assert math.dist(vector, (0.6, 0.8)) < 1e-6


@pytest.mark.parametrize("reply", [b"[]", b"{}", b'{"data":[{}]}', b'{"data":[{"embedding":"x"}]}'])
def test_what_is_no_such_reply_is_refused(reply: bytes) -> None:
    with pytest.raises(UpstreamBroken):
        shortened(reply, 2, as_base64=False, socket_path="child")
