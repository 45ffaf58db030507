import hashlib
import struct
import time

from supervisor.engines.tinymodel import tiny_model


def test_the_same_bytes_come_out_every_time() -> None:
    first, second = tiny_model(), tiny_model()

    assert first == second
    assert (
        hashlib.sha256(first).hexdigest()
        == "d63c750087a24b50e01f9fb57ed406fcba131fc14d6b8e6d3f55482b792ce4e0"
    )


def test_it_is_a_gguf_of_about_half_a_megabyte() -> None:
    model = tiny_model()

    magic, version, n_tensors, n_keys = struct.unpack_from("<4sIQQ", model)
    assert (magic, version, n_tensors, n_keys) == (b"GGUF", 3, 12, 16)
    assert 500_000 < len(model) < 550_000
    assert len(model) % 32 == 0


def test_writing_it_costs_no_noticeable_part_of_a_start() -> None:
    begun_s = time.process_time()

    tiny_model()

    assert time.process_time() - begun_s < 0.3
