"""A batch is a function of its key alone."""

import json
import random

import numpy as np
import pytest

import atarirb
from atarirb import draws
from atarirb.errors import KeyTypeError
from tests import truth


def words(key):
    return draws.words(key, 3).tolist()


# The first words of some keys. They must stay the same for ever: every draw follows from them.
GOLDEN_WORDS = {
    0: [0x0399E5B222B82FA9, 0x41FD08C1F00F3BC5, 0x78B8824162EE4D04],
    1: [0x1119EFBD6BC0CE3A, 0x143A31DF2C79CF7E, 0x017A9BF501E09A0B],
    7: [0x78046C3E44C57FAE, 0x6D17E4BDF94F8AC5, 0x5CEC5E6620741A73],
    2**32: [0x9B7C56721DC8CD50, 0x80F47C00870D0663, 0x6DDD2F0EA3556E93],
    2**127: [0xC0440D679F9DF0A8, 0x77428DE038CF8702, 0x4C44FD3AFFA291B8],
}


def test_words_of_int_keys_stay_the_same():
    assert {key: words(key) for key in GOLDEN_WORDS} == GOLDEN_WORDS


def test_words_of_raw_keys_stay_the_same():
    threefry, rbg = np.array([0, 7], np.uint32), np.array([1, 2, 3, 4], np.uint32)
    assert words(threefry) == [0x2C7F9994CD509D2E, 0x5E1354F00CC96399, 0x51F4195CCE53B53D]
    assert words(rbg) == [0x807DD1CAC23E37E8, 0xF5571275152EECC8, 0xB5ABBD848EB61BFB]


def test_words_of_generators_stay_the_same():
    generator = np.random.Generator(np.random.PCG64(7))
    assert words(generator) == [0xD69E6C1984270FD3, 0xD6D6AFE84D8BC39D, 0x39C797B87F7C6D5D]


def test_more_words_begin_with_the_same_ones():
    assert draws.words(5, 10)[:3].tolist() == words(5)


def test_keys_that_differ_in_any_bit_give_other_words():
    keys = [1 << bit for bit in range(200)] + [0, 3, 5]
    keys += [
        np.array([1 << high, 1 << low], np.uint32) for high in range(0, 32, 5) for low in range(0, 32, 5)
    ]
    assert len({tuple(words(key)) for key in keys}) == len(keys)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64, np.uint64])
def test_numpy_integers_are_the_int_of_their_value(kind):
    assert words(kind(7)) == words(7)


def test_a_seed_sequence_is_used_as_it_is():
    assert words(np.random.SeedSequence(7)) == words(7)
    child, other = np.random.SeedSequence(7).spawn(2)
    assert words(child) == words(child)
    assert len({tuple(words(key)) for key in (child, other, 7)}) == 3


def test_a_generator_moves_on():
    generator = np.random.default_rng(7)
    first, second = words(generator), words(generator)
    assert first != second
    again = np.random.default_rng(7)
    assert [words(again), words(again)] == [first, second]


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_generator_over_any_bits_is_a_key(bits):
    assert words(np.random.Generator(bits(1))) == words(np.random.Generator(bits(1)))


def test_typed_and_raw_jax_keys_are_the_same_key():
    jax = pytest.importorskip("jax")
    typed, raw = jax.random.key(7), jax.random.PRNGKey(7)
    assert words(typed) == words(raw) == words(np.asarray(raw))
    assert words(jax.random.key(8)) != words(typed)


@pytest.mark.parametrize("implementation", ["rbg", "unsafe_rbg"])
def test_jax_keys_of_four_words_are_keys(implementation):
    jax = pytest.importorskip("jax")
    typed, raw = jax.random.key(7, impl=implementation), jax.random.PRNGKey(7, impl=implementation)
    assert words(typed) == words(raw)


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (None, "None"),
        (1.5, "1.5"),
        ("seed", "'seed'"),
        (True, "True"),
        (np.True_, "True"),
        ([0, 1], "[0, 1]"),
        (np.array([0, 1]), "int64[2]"),
        (np.array([0.5, 1.5]), "float64[2]"),
        (np.zeros((3, 2), np.uint32), "uint32[3, 2]"),
        (np.zeros(3, np.uint32), "uint32[3]"),
        (np.random.RandomState(0), "RandomState"),
        (np.random.PCG64(0), "PCG64"),
    ],
)
def test_what_cannot_be_a_key_is_named_and_what_can_be_is_listed(key, named):
    with pytest.raises(KeyTypeError) as caught:
        draws.words(key, 1)
    assert named in str(caught.value)
    assert "expected a JAX PRNG key" in str(caught.value)
    assert "SeedSequence" in str(caught.value)


def test_negative_ints_are_no_keys():
    with pytest.raises(KeyTypeError, match="key -1 is negative; expected an int of 0 or more"):
        draws.words(-1, 1)


def test_a_batch_of_jax_keys_is_no_key():
    jax = pytest.importorskip("jax")
    for keys in (jax.random.split(jax.random.key(0), 3), jax.random.split(jax.random.PRNGKey(0), 3)):
        with pytest.raises(KeyTypeError, match=r"uint32\[3, 2\].*not a batch of them"):
            draws.words(keys, 1)


def test_other_jax_arrays_are_no_keys():
    jax = pytest.importorskip("jax")
    with pytest.raises(KeyTypeError, match=r"float32\[2\]"):
        draws.words(jax.numpy.zeros(2), 1)


def test_traced_keys_are_refused_with_the_reason():
    jax = pytest.importorskip("jax")

    def draw(key):
        draws.words(key, 1)
        return key

    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        with pytest.raises(KeyTypeError, match=r"traced, inside jit.*drawn on the host, outside"):
            jax.jit(draw)(key)


def test_no_global_generator_is_used_or_changed(small):
    reader = atarirb.open(small[0])
    np.random.seed(1)
    random.seed(1)
    first = reader.sample(7, 64)
    numpys, pythons = np.random.get_state(), random.getstate()
    np.random.seed(2)
    random.seed(2)
    truth.assert_same(reader.sample(7, 64), first)
    np.random.seed(1)
    random.seed(1)
    assert random.getstate() == pythons
    for mine, now in zip(numpys, np.random.get_state(), strict=True):
        np.testing.assert_array_equal(mine, now)


def test_as_many_words_are_drawn_whatever_the_dataset(small, pong, monkeypatch):
    """Nothing is drawn again: what a draw costs does not depend on what is drawn from."""
    asked = []
    words_of = draws.words
    monkeypatch.setattr(draws, "words", lambda key, count: asked.append(count) or words_of(key, count))
    for path in (small[0], pong):
        with atarirb.open(path, frame_stack=3, n_step=4) as reader:
            reader.sample(1, 32)
            reader.sample_slices(1, 32, 10)
            reader.sample_slices(1, 32, 10, weighting="episodes")
    assert asked == [32, 32, 64] * 2


# What sample run Pong/1 gives, frame_stack=4, n_step=3: the same for every output, number of threads
# and machine, with numba or without. Of the draws of `truth.sample_digests`.
GOLDEN_DIGESTS = [
    "5f514cafd30151cc006683287a7960a726027b4e18c01f11a24433156f56f64e",
    "283a6d6f20fa519d202ac400da78283aa0f8221f6720c62df09f29e1c74270b7",
    "eb8287dc212b57d8bbe0b8e165059d0d63bdbf173d17342b80a9d013b812f3e8",
]


@pytest.fixture(scope="module")
def reader(pong):
    return atarirb.open(pong, frame_stack=4, n_step=3, columns=("return_to_go", "timestep"))


def test_indices_stay_the_same(reader):
    assert reader.sample(7, 5)["index"].tolist() == [4217, 3834, 3265, 2135, 1248]
    assert reader.sample_slices(8, 3, 5)["index"][:, 0].tolist() == [4372, 1233, 7196]
    by_episode = reader.sample_slices(9, 3, 5, weighting="episodes")
    assert by_episode["index"][:, 0].tolist() == [3651, 8417, 8479]


def test_batches_stay_the_same(reader):
    assert truth.sample_digests(reader) == GOLDEN_DIGESTS


def test_batches_as_jax_arrays_are_the_same(pong):
    pytest.importorskip("jax")
    with atarirb.open(
        pong, frame_stack=4, n_step=3, columns=("return_to_go", "timestep"), output="jax"
    ) as reader:
        assert truth.sample_digests(reader) == GOLDEN_DIGESTS


@pytest.mark.parametrize(
    "environment",
    [{"ATARIRB_THREADS": 1}, {"ATARIRB_THREADS": 16}, {"ATARIRB_NUMBA": 0}, {"ATARIRB_ZSTD": "python"}],
    ids=str,
)
def test_batches_do_not_depend_on_threads_numba_or_decoder(pong, python, environment):
    code = """
        import json, sys
        import atarirb
        from tests import truth
        reader = atarirb.open(sys.argv[1], frame_stack=4, n_step=3, columns=("return_to_go", "timestep"))
        print(json.dumps(truth.sample_digests(reader)))
    """
    assert json.loads(python(code, pong, **environment)) == GOLDEN_DIGESTS
