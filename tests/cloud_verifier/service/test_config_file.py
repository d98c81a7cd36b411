"""The configuration file: everything it may hold, and one line that names table and field for everything else."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.guardrails.rule import OFF, ON, SHADOW, Rule
from draftwire.cloud_verifier.guardrails.thresholds import Thresholds
from draftwire.cloud_verifier.service.config import Config, DoorLimits, KeyRules, RouteRules, TlsFiles
from draftwire.cloud_verifier.service.config_file import read_config
from draftwire.cloud_verifier.service.keys import hash_key
from draftwire.protocol.errors import InvalidParameterError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HASH = hash_key("one")

WHOLE = f"""
[limits]
max_connections = 100
max_connections_per_key = 10
max_connections_per_address = 20
connections_per_minute = 60
requests_per_minute = 120.5
max_streams_per_key = 8
max_prompt_tokens = 4000
max_output_tokens = 1000
hello_seconds = 2.5
idle_seconds = 0

[keys.alice]
sha256 = ["{HASH}", "{hash_key("two")}"]
max_streams = 4
max_connections = 2
requests_per_minute = 30
max_prompt_tokens = 100
max_output_tokens = 50
speculation = "shadow"

[keys."team.b"]
sha256 = ["{hash_key("three")}"]

[routes.default]
speculation = {{canary = 0.25}}

[routes.chat]
speculation = "off"

[routes.chat.guardrails]
min_acceptance = 0.5
tripped = "shadow"

[origins]
allow = ["https://App.example", "http://localhost:5173"]

[tls]
certificate = "tls/cert.pem"
key = "/etc/key.pem"

[guardrails]
min_acceptance = 0.3
max_tpot_ratio = 1.25
max_error_rate = 0.05
window_seconds = 60
baseline_seconds = 600
min_samples = 30
cooldown_seconds = 90
good_windows = 2
probe_share = 0.2
baseline_share = 0.05
"""


def read(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "verifier.toml"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def test_everything(tmp_path: Path) -> None:
    general = Thresholds(
        min_acceptance=0.3,
        max_tpot_ratio=1.25,
        max_error_rate=0.05,
        window_seconds=60.0,
        baseline_seconds=600.0,
        min_samples=30,
        cooldown_seconds=90.0,
        good_windows=2,
        probe_share=0.2,
        baseline_share=0.05,
    )
    config = read(tmp_path, WHOLE)
    assert config.limits == DoorLimits(
        max_connections=100,
        max_connections_per_key=10,
        max_connections_per_address=20,
        connections_per_minute=60.0,
        requests_per_minute=120.5,
        max_streams_per_key=8,
        max_prompt_tokens=4000,
        max_output_tokens=1000,
        hello_seconds=2.5,
        idle_seconds=0.0,
    )
    assert all(f"\n{each.name} = " in WHOLE for each in fields(DoorLimits)), "every limit can be set"
    assert config.keys["alice"] == KeyRules(
        digests=(HASH, hash_key("two")),
        max_streams=4,
        max_connections=2,
        requests_per_minute=30.0,
        max_prompt_tokens=100,
        max_output_tokens=50,
        speculation=SHADOW,
    )
    assert config.keys["team.b"] == KeyRules(digests=(hash_key("three"),))
    assert config.routes[""] == RouteRules(speculation=Rule(Speculation.ON, share=0.25))
    assert config.routes["chat"].speculation == OFF
    chat = config.routes["chat"].thresholds
    assert chat is not None
    assert (chat.min_acceptance, chat.tripped, chat.min_samples) == (0.5, Speculation.SHADOW, 30)
    assert config.origins == {"https://app.example", "http://localhost:5173"}
    assert config.tls == TlsFiles(certificate=tmp_path / "tls/cert.pem", key=Path("/etc/key.pem"))
    assert config.thresholds == general


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Config()
    assert Config().rules_of("anybody").speculation == ON


def test_a_keys_own_limits_go_before_the_general_ones(tmp_path: Path) -> None:
    config = read(tmp_path, WHOLE)
    assert config.rules_of("alice").max_streams == config.tenant("alice").max_streams == 4
    assert config.rules_of("team.b").max_streams == config.tenant("team.b").max_streams == 8
    assert config.rules_of("team.b").requests_per_minute == 120.5
    assert config.rules_of("team.b").digests == (hash_key("three"),)


def test_keys_from_elsewhere_join_those_of_their_name(tmp_path: Path) -> None:
    config = read(tmp_path, WHOLE).with_keys({"alice": [hash_key("four")], "carol": [hash_key("five")]})
    assert len(config.keyring()) == 5
    assert config.rules_of("alice").max_streams == 4
    assert config.keyring().find("four").name == "alice"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[limit]\n", "verifier.toml limit"),
        ("x = 1\n", "verifier.toml x"),
        ("limits = 3\n", "verifier.toml limits: must be a table"),
        ("[limits]\nmax_conections = 3\n", "[limits] max_conections"),
        ("[limits]\nmax_connections = 0\n", "[limits] max_connections"),
        ("[limits]\nmax_connections = true\n", "[limits] max_connections"),
        ("[limits]\nmax_connections = 1.5\n", "[limits] max_connections"),
        ("[limits]\nmax_connections = 99999999999\n", "[limits] max_connections"),
        (f"[limits]\nmax_connections = {'9' * 400}\n", "[limits] max_connections: must be a whole number"),
        (f"[limits]\nmax_connections = {'9' * 5000}\n", "is no TOML: "),
        (f"[limits]\nmax_connections = 0x{'f' * 5000}\n", "[limits] max_connections: must be a whole number"),
        (f"[limits]\nidle_seconds = {'9' * 400}\n", "[limits] idle_seconds: must be a number"),
        (f"[limits]\nrequests_per_minute = 0x{'f' * 5000}\n", "[limits] requests_per_minute: must be a number"),
        (f"[routes.chat]\nspeculation = {{canary = {'9' * 400}}}\n", "[routes.chat] speculation: must be a number"),
        ("[limits]\nrequests_per_minute = 0\n", "[limits] requests_per_minute"),
        ("[limits]\nrequests_per_minute = nan\n", "[limits] requests_per_minute"),
        ("[limits]\nrequests_per_minute = 1e-5\n", "[limits] requests_per_minute: must be a number, at least 0.001"),
        ("[limits]\nconnections_per_minute = 5e-324\n", "[limits] connections_per_minute"),
        ("[limits]\nhello_seconds = 0\n", "[limits] hello_seconds: must be seconds, above 0"),
        ('[tls]\ncertificate = "a\\u0000b"\nkey = "c"\n', "[tls] certificate: must be text on one line"),
        ("[limits]\nidle_seconds = -1\n", "[limits] idle_seconds"),
        ("[limits]\nidle_seconds = inf\n", "[limits] idle_seconds"),
        ('[limits]\nidle_seconds = "long"\n', "[limits] idle_seconds"),
        ("[keys]\nalice = 3\n", "[keys] alice"),
        ("[keys.alice]\n", "[keys.alice] sha256"),
        ("[keys.alice]\nsha256 = []\n", "[keys.alice] sha256"),
        (f'[keys.alice]\nsha256 = "{HASH}"\n', "[keys.alice] sha256: must be a list"),
        ('[keys.alice]\nsha256 = ["dw_secret"]\n', "[keys.alice] sha256"),
        (f'[keys."a b"]\nsha256 = ["{HASH}"]\n', "'a b'"),
        (f'[keys.alice]\nsha256 = ["{HASH}"]\nmax_stream = 1\n', "[keys.alice] max_stream"),
        (f'[keys.alice]\nsha256 = ["{HASH}"]\nspeculation = "maybe"\n', "[keys.alice] speculation"),
        (f'[keys.alice]\nsha256 = ["{HASH}"]\nspeculation = {{canary = 1.5}}\n', "[keys.alice] speculation"),
        (f'[keys.alice]\nsha256 = ["{HASH}"]\nspeculation = {{canary = 0}}\n', "[keys.alice] speculation"),
        (f'[keys.alice]\nsha256 = ["{HASH}"]\nspeculation = {{canari = 0.1}}\n', "[keys.alice] speculation"),
        ("[routes.chat]\nspeed = 3\n", "[routes.chat] speed"),
        ('[routes."a/b"]\n', "'a/b'"),
        ("[routes.chat.guardrails]\nmin_samples = 0\n", "[routes.chat.guardrails] min_samples"),
        ('[origins]\nallow = ["app.example"]\n', "[origins] allow"),
        ('[origins]\nallow = ["https://app.example/path"]\n', "[origins] allow"),
        ('[tls]\ncertificate = "x"\n', "[tls]: must name both"),
        ('[tls]\ncertificate = "x"\nkey = 3\n', "[tls] key"),
        ("[guardrails]\nmin_acceptance = 1.5\n", "[guardrails] min_acceptance"),
        ("[guardrails]\nmax_tpot_ratio = 0.5\n", "[guardrails] max_tpot_ratio"),
        ("[guardrails]\nprobe_share = 0.0\n", "[guardrails] probe_share"),
        ("[guardrails]\nmin_samples = 5000\n", "[guardrails] min_samples"),
        ('[guardrails]\ntripped = "on"\n', "[guardrails] tripped"),
        ("[guardrails]\ncooldown_seconds = 0\n", "[guardrails] cooldown_seconds"),
        ("[limits\n", "is no TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_table(text: str, names: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        read(tmp_path, text)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))
    assert str(tmp_path / "verifier.toml") in str(caught.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "verifier.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidParameterError, match="is no TOML"):
        read_config(tmp_path / "verifier.toml")


_LINES = st.sampled_from([line for line in WHOLE.splitlines() if line])
_VALUES = st.sampled_from(
    ["0", "-1", "true", '"x"', "[]", "{}", "[1]", "nan", "1e400", "1979-05-27", '"on"', "{a.b = 1}"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_any_mixture_is_read_or_refused_in_one_line(tmp_path: Path, data: st.DataObject) -> None:
    lines = data.draw(st.lists(_LINES, max_size=8))
    if lines and data.draw(st.booleans()):
        spoilt = data.draw(st.integers(0, len(lines) - 1))
        lines[spoilt] = lines[spoilt].partition("=")[0] + "= " + data.draw(_VALUES)
    problem = ""
    try:
        read(tmp_path, "\n".join(lines))
    except InvalidParameterError as error:
        problem = str(error)
    assert "\n" not in problem
