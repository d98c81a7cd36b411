from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftwire.protocol import noise
from draftwire.protocol.noise import GUMBEL_MAX, GUMBEL_MIN, Domain, coupled_choice, gumbel, hash_bits, uniform
from draftwire.protocol.sampling import SamplingParams, TokenHistory, probabilities, process_logits
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("noise_vectors.json").read_text(encoding="utf-8"))
U64 = st.integers(0, 2**64 - 1)
POSITION = st.integers(0, 2**31 - 1)


# --- docs/protocol.md in plain Python: integers of any size, and one IEEE 754 operation after another ------------


def plain_mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def plain_bits(seed: int, position: int, domain: int, token: int) -> int:
    golden = 0x9E3779B97F4A7C15
    outer = plain_mix((seed + (domain + 1) * golden) % 2**64)
    key = plain_mix((outer + (position + 1) * golden) % 2**64)
    return plain_mix((key + (token + 1) * golden) % 2**64)


def plain_unit(bits: int) -> float:
    return (2 * (bits // 2**12) + 1) / 2**53


def plain_ln(x: float) -> float:
    m, e = math.frexp(x)
    if m < 0.7071067811865476:
        m, e = m * 2.0, e - 1
    s = (m - 1.0) / (m + 1.0)
    w = s * s
    r = 1.0 / 23.0
    for n in (21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1):
        r = r * w + 1.0 / n
    return e * 0.6931471805599453 + (2.0 * s) * r


def plain_gumbel_of_bits(bits: int) -> float:
    return -plain_ln(-plain_ln(plain_unit(bits)))


def one_gumbel(seed: int, position: int, token: int, domain: int = 0) -> float:
    return float(gumbel(seed, position, np.array([token]), domain)[0])


# --- vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["noise"])
def test_published_noise(vector: dict[str, Any]) -> None:
    seed, position = int(vector["seed"], 16), vector["position"]
    domain, token, bits = vector["domain"], vector["token"], int(vector["bits"], 16)
    assert int(hash_bits(seed, position, np.array([token]), domain)[0]) == bits
    assert plain_bits(seed, position, domain, token) == bits
    assert one_gumbel(seed, position, token, domain).hex() == vector["gumbel"]
    assert plain_gumbel_of_bits(bits).hex() == vector["gumbel"]


@pytest.mark.parametrize("vector", VECTORS["uniform"])
def test_published_uniforms(vector: dict[str, Any]) -> None:
    seed, position, domain = int(vector["seed"], 16), vector["position"], vector["domain"]
    assert uniform(seed, position, domain).hex() == vector["uniform"]
    assert plain_unit(plain_bits(seed, position, domain, 0)).hex() == vector["uniform"]


@pytest.mark.parametrize("vector", VECTORS["gumbel_of_bits"])
def test_published_extremes(vector: dict[str, Any]) -> None:
    bits = int(vector["bits"], 16)
    assert plain_unit(bits).hex() == vector["unit"]
    assert plain_gumbel_of_bits(bits).hex() == vector["gumbel"]
    assert GUMBEL_MIN <= plain_gumbel_of_bits(bits) <= GUMBEL_MAX


@pytest.mark.parametrize("vector", VECTORS["coupled"])
def test_published_choices(vector: dict[str, Any]) -> None:
    scores = np.array([-math.inf if score is None else score for score in vector["scores"]])
    tokens = None if vector["tokens"] is None else np.array(vector["tokens"])
    assert coupled_choice(scores, int(vector["seed"], 16), vector["position"], tokens=tokens) == vector["choice"]


def test_vectors_cover_the_extremes() -> None:
    seeds = {int(vector["seed"], 16) for vector in VECTORS["noise"]}
    assert {0, 2**64 - 1} <= seeds
    assert {vector["domain"] for vector in VECTORS["noise"]} == set(Domain)
    assert {vector["domain"] for vector in VECTORS["uniform"]} == set(Domain)
    assert {int(vector["bits"], 16) for vector in VECTORS["gumbel_of_bits"]} >= {0, 2**64 - 1}


# --- the hash and the logarithm ------------------------------------------------------------------------------------


@given(U64, POSITION, st.sampled_from(Domain), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5))
def test_bits_equal_the_plain_hash(seed: int, position: int, domain: Domain, tokens: list[int]) -> None:
    bits = hash_bits(seed, position, np.array(tokens), domain)
    assert bits.dtype == np.uint64
    assert [int(value) for value in bits] == [plain_bits(seed, position, domain, token) for token in tokens]
    assert uniform(seed, position, domain) == plain_unit(plain_bits(seed, position, domain, 0))


def test_gumbel_is_bit_equal_to_the_plain_operations_and_close_to_the_library() -> None:
    tokens = np.arange(5000)
    values = gumbel(77, 3, tokens)
    bits = [int(value) for value in hash_bits(77, 3, tokens)]
    assert [float(value).hex() for value in values] == [plain_gumbel_of_bits(value).hex() for value in bits]
    library = [-math.log(-math.log(plain_unit(value))) for value in bits]
    np.testing.assert_allclose(values, library, rtol=0, atol=1e-12)


@pytest.mark.parametrize("around", [0.5, 0.7071067811865476, 1 - 2**-53, 2**-53, 1.0, 1 / math.e])
def test_the_logarithm_where_it_changes_course(around: float) -> None:
    below = [math.nextafter(around, 0.0)]
    for _ in range(200):
        below.append(math.nextafter(below[-1], 0.0))
    points = [around, *below, *(math.nextafter(around, 2.0) for _ in range(1)), around * 1.0001, around * 0.9999]
    ours = noise._ln(np.array(points))
    assert [float(value).hex() for value in ours] == [plain_ln(point).hex() for point in points]
    for value, point in zip(ours, points, strict=True):
        assert value == pytest.approx(math.log(point), rel=4e-16, abs=2e-16)


def test_bounds_hold_and_are_tight() -> None:
    least, most = plain_gumbel_of_bits(0), plain_gumbel_of_bits(2**64 - 1)
    assert GUMBEL_MIN <= least < GUMBEL_MIN + 1e-3
    assert GUMBEL_MAX - 1e-3 < most <= GUMBEL_MAX
    lowest, highest = noise._unit(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert 0 < lowest < highest < 1


def test_noise_of_a_token_does_not_depend_on_the_others() -> None:
    every = gumbel(5, 6, np.arange(1000))
    assert np.array_equal(gumbel(5, 6, np.array([999, 3, 500])), every[[999, 3, 500]])
    assert np.array_equal(gumbel(5, 6, np.arange(10), Domain.COUPLED), every[:10])


# --- distribution ---------------------------------------------------------------------------------------------------


def samples_by_token() -> NDArray[np.float64]:
    return gumbel(1, 0, np.arange(100_000))


def samples_by_position() -> NDArray[np.float64]:
    return np.concatenate([gumbel(2, position, np.arange(5)) for position in range(20_000)])


def samples_by_seed() -> NDArray[np.float64]:
    return np.concatenate([gumbel(seed, 9, np.arange(5)) for seed in range(20_000)])


@pytest.mark.parametrize("draw", [samples_by_token, samples_by_position, samples_by_seed])
def test_noise_is_standard_gumbel(draw: Any) -> None:
    values = draw()
    assert stats.kstest(values, "gumbel_r").pvalue > 1e-4
    error = math.sqrt(math.pi**2 / 6 / len(values))
    assert values.mean() == pytest.approx(0.5772156649, abs=4.5 * error)
    assert values.var() == pytest.approx(math.pi**2 / 6, rel=0.05)


def test_uniforms_are_uniform_along_seeds_and_positions() -> None:
    by_seed = [uniform(seed, 4, Domain.ACCEPT) for seed in range(20_000)]
    by_position = [uniform(4, position, Domain.RESIDUAL) for position in range(20_000)]
    assert stats.kstest(by_seed, "uniform").pvalue > 1e-4
    assert stats.kstest(by_position, "uniform").pvalue > 1e-4


def test_neighbours_are_independent() -> None:
    """Adjacent positions, domains, tokens and seeds: no correlation of the values, nor of single bits."""
    tokens = np.arange(40_000)
    base = gumbel(8, 100, tokens)
    others = {
        "position": gumbel(8, 101, tokens),
        "seed": gumbel(9, 100, tokens),
        "token": gumbel(8, 100, tokens + 1),
        "flipped seed": gumbel(8 ^ 1 << 63, 100, tokens),
        **{domain.name: gumbel(8, 100, tokens, domain) for domain in Domain if domain},
        "seed and position swapped": gumbel(100, 8, tokens),
    }
    for name, other in others.items():
        assert abs(np.corrcoef(base, other)[0, 1]) < 4.5 / math.sqrt(len(tokens)), name
    bits, moved = hash_bits(8, 100, tokens), hash_bits(8, 101, tokens)
    for bit in range(64):
        agree = np.mean((bits >> np.uint64(bit) & np.uint64(1)) == (moved >> np.uint64(bit) & np.uint64(1)))
        assert abs(agree - 0.5) < 4.5 * 0.5 / math.sqrt(len(tokens)), bit


def test_no_two_pairs_of_small_seed_and_position_share_their_noise() -> None:
    seen = {int(hash_bits(seed, position, np.array([0]))[0]) for seed in range(100) for position in range(100)}
    assert len(seen) == 100 * 100


def test_a_choice_and_a_later_choice_are_independent() -> None:
    scores = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    table = np.zeros((4, 4))
    for seed in range(8000):
        table[coupled_choice(scores, seed, 10), coupled_choice(scores, seed, 11)] += 1
    assert stats.chi2_contingency(table).pvalue > 1e-4


# --- the choice -----------------------------------------------------------------------------------------------------


def brute_force(scores: NDArray[np.float64], seed: int, position: int, tokens: NDArray[np.int64]) -> int:
    return int(tokens[(scores + gumbel(seed, position, tokens)).argmax()])


def rows(count: int, size: int, generator: np.random.Generator) -> list[NDArray[np.float64]]:
    """Flat, ordinary, peaked and cut-off rows; the best score is not always 0."""
    made = []
    for index in range(count):
        row = generator.standard_normal(size) * (0.0, 0.5, 3.0, 8.0, 40.0)[index % 5]
        if index % 3 == 0:
            row[generator.random(size) < 0.7] = -np.inf
            row[generator.integers(size)] = 1.0
        if index % 7 == 0:
            row[generator.integers(size)] = row.max() + generator.uniform(5, 45)  # nearly certain
        made.append(row + generator.uniform(-5, 5))
    return made


@pytest.mark.parametrize(("size", "count"), [(1, 20), (2, 500), (8, 2000), (1000, 600), (50_000, 25)])
def test_the_choice_is_the_best_of_scores_and_noise(size: int, count: int) -> None:
    generator = np.random.default_rng(size)
    every = np.arange(size)
    for index, scores in enumerate(rows(count, size, generator)):
        seed, position = int(generator.integers(2**63)) * 2 + 1, index
        assert coupled_choice(scores, seed, position) == brute_force(scores, seed, position, every)


def test_a_subset_competes_with_its_own_noise() -> None:
    generator = np.random.default_rng(12)
    for index, scores in enumerate(rows(1500, 40, generator)):
        tokens = np.sort(generator.choice(49_152, 40, replace=False))
        assert coupled_choice(scores, index, 7, tokens=tokens) == brute_force(scores, index, 7, tokens)


def test_a_subset_that_holds_the_winner_chooses_it() -> None:
    generator = np.random.default_rng(13)
    for index, scores in enumerate(rows(500, 300, generator)):
        winner = coupled_choice(scores, index, 7)
        tokens = np.union1d(generator.choice(300, 30, replace=False), [winner])
        assert coupled_choice(scores[tokens], index, 7, tokens=tokens) == winner


def test_improbable_tokens_win_exactly_when_their_noise_says_so() -> None:
    """Tokens further below the top than the shortcut looks at first still win as often as they should."""
    size = 200_000
    scores = np.full(size, -12.0005)
    scores[5] = 0.0
    every, far = np.arange(size), 0
    for seed in range(100):
        choice = coupled_choice(scores, seed, 1)
        assert choice == brute_force(scores, seed, 1, every)
        far += choice != 5
    share = (size - 1) * math.exp(-12.0005) / (1 + (size - 1) * math.exp(-12.0005))
    assert abs(far - 100 * share) < 4.5 * math.sqrt(100 * share * (1 - share))


def test_near_ties_are_decided_by_the_exact_logarithm_and_ties_by_id() -> None:
    """Scores made so that two totals differ by less than libraries' logarithms do, or not at all."""
    for seed in range(300):
        noise_of = gumbel(seed, 2, np.array([3, 7]))
        for nudge in (-1e-13, 0.0, 1e-13, 1e-7, -1e-7):
            scores = np.full(10, -np.inf)
            scores[3], scores[7] = 0.0, noise_of[0] - noise_of[1] + nudge
            assert coupled_choice(scores, seed, 2) == brute_force(scores, seed, 2, np.arange(10))
    tied = np.full(4, -np.inf)
    tied[[1, 2]] = -gumbel(0, 0, np.array([1, 2]))
    assert coupled_choice(tied, 0, 0) == 1


@settings(max_examples=300, deadline=None)
@given(U64, POSITION, st.lists(st.one_of(st.floats(-100, 0), st.just(-math.inf)), min_size=1, max_size=30))
def test_any_row(seed: int, position: int, values: list[float]) -> None:
    scores = np.array([*values, 0.0])
    assert coupled_choice(scores, seed, position) == brute_force(scores, seed, position, np.arange(len(scores)))


@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.8}])
def test_choices_are_distributed_as_softmax(temperature: float, options: dict[str, Any]) -> None:
    logits = (np.random.default_rng(3).standard_normal(8) * 0.8).astype(np.float32)
    scores = process_logits(logits, SamplingParams(temperature=temperature, **options), TokenHistory())
    counts = np.bincount([coupled_choice(scores, seed, 21) for seed in range(6000)], minlength=8)
    p = probabilities(scores)
    assert counts[p == 0].sum() == 0
    assert stats.chisquare(counts[p > 0], 6000 * p[p > 0]).pvalue > 1e-4
