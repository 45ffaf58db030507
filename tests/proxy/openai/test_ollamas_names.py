from proxy.openai.ollamas_names import in_ollamas_names


def test_a_reply_has_ollamas_fingerprint_and_name_of_thoughts() -> None:
    told = b'{"message":{"reasoning_content":"a"},"system_fingerprint":"b1-7e4c0a9"}'

    assert (
        in_ollamas_names(told) == b'{"message":{"reasoning":"a"},"system_fingerprint":"fp_ollama"}'
    )


def test_a_text_that_speaks_of_them_stays_as_it_is() -> None:
    told = rb'{"content":"\"reasoning_content\":\"a\",\"system_fingerprint\":\"b\""}'

    assert in_ollamas_names(told) == told
