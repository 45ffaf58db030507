import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.durations import BadDuration
from proxy.errors import BadJson, BadRequest, TooManyValues
from proxy.ollama.fields import MAX_VALUES, read_object


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "missing request body"),
        (b"  ", "missing request body"),
        (b'{"model":', "unexpected EOF"),
        (b'{"model":"a', "unexpected EOF"),
        (b"xyz", "invalid character 'x' looking for beginning of value"),
        (b"{model:1}", "invalid character 'm' in JSON input"),
        (b'{"a":NaN}', "invalid character 'N' looking for beginning of value"),
        (b"[1]", "json: cannot unmarshal array into Go value of type api.R"),
        (b"5", "json: cannot unmarshal number into Go value of type api.R"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":"\xff"}', "no UTF-8"),
        (b'{"a":' + b"9" * 5000 + b"}", "a number of thousands of digits"),
    ],
)
def test_a_body_that_is_no_object_is_refused_in_ollamas_words(body: bytes, says: str) -> None:
    with pytest.raises(BadJson) as refused:
        read_object(body, "R")

    assert says in str(refused.value)


def test_an_object_of_too_many_values_is_refused_undecoded() -> None:
    with pytest.raises(TooManyValues):
        read_object(b'{"context":[' + b"0," * MAX_VALUES + b"0]}", "R")


def test_a_long_context_is_read() -> None:
    fields = read_object(b'{"context":[' + b"0," * (1 << 18) + b"0]}", "R")

    assert len(fields.whole_numbers("context")) == (1 << 18) + 1


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    try:
        read_object(body, "R").text("model", "x")
    except BadRequest:
        return


def test_only_the_first_value_counts() -> None:
    assert read_object(b'{"model":"a"} trailing', "R").text("model") == "a"


def test_half_a_surrogate_pair_becomes_a_character_that_can_be_sent_on() -> None:
    fields = read_object(b'{"prompt":"a\\ud800b \\ud83d\\ude00"}', "R")

    assert fields.text("prompt") == "a\ufffdb \U0001f600"


def test_null_is_an_object_without_fields() -> None:
    assert "model" not in read_object(b"null", "R")


def test_names_have_no_case_and_the_last_wins() -> None:
    assert read_object(b'{"model":"a","MODEL":"b"}', "R").text("model") == "b"


def test_null_is_absent() -> None:
    assert read_object(b'{"stream":null}', "R").flag("stream", default=True) is True


@pytest.mark.parametrize(
    ("body", "read", "says"),
    [
        (b'{"f":5}', "text", "cannot unmarshal number into Go struct field R.f of type string"),
        (b'{"f":"x"}', "flag", "cannot unmarshal string into Go struct field R.f of type bool"),
        (b'{"f":true}', "whole", "cannot unmarshal bool into Go struct field R.f of type int"),
        (b'{"f":1.5}', "whole", "cannot unmarshal number 1.5 into Go struct field R.f of type int"),
        (b'{"f":{}}', "items", "cannot unmarshal object into Go struct field R.f of type []obj"),
        (b'{"f":[1]}', "texts", "cannot unmarshal number into Go struct field R.f of type string"),
        (b'{"f":[]}', "mapping", "cannot unmarshal array into Go struct field R.f of type map"),
    ],
)
def test_a_wrong_type_is_named_as_go_names_it(body: bytes, read: str, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        getattr(read_object(body, "R"), read)("f")

    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [(b"30", 30.0), (b"0.5", 0.5), (b"-1", math.inf), (b'"1m30s"', 90.0), (b'"-1m"', math.inf)],
)
def test_keep_alive_is_read_in_every_form(told: bytes, seconds: float) -> None:
    assert read_object(b'{"keep_alive":%b}' % told, "R").keep_alive_s() == seconds


@pytest.mark.parametrize("told", [b'"5"', b'"abc"', b'""', b"true", b'"1d"'])
def test_a_keep_alive_that_is_none_is_refused(told: bytes) -> None:
    with pytest.raises(BadDuration):
        read_object(b'{"keep_alive":%b}' % told, "R").keep_alive_s()
