"""A setting is checked once, when it is given, and a wrong one is named as the user knows it."""

import pytest

from inagg import Options
from inagg.errors import ConfigurationError

URL = "http://10.0.0.254:9560"


def test_defaults() -> None:
    options = Options(controller=URL)
    assert (options.lane_bits, options.slots, options.fallback) == (32, 256, "error")


def test_environment_gives_the_same_options() -> None:
    environment = {
        "INAGG_CONTROLLER": URL,
        "INAGG_LANE_BITS": "16",
        "INAGG_SLOTS": "128",
        "INAGG_ADDRESS": "10.0.0.3",
        "INAGG_SWITCH_PORT": "3",
        "INAGG_FALLBACK": "inner",
        "UNRELATED": "x",
    }
    assert Options.from_environment(environment) == Options(
        controller=URL, lane_bits=16, slots=128, address="10.0.0.3", switch_port=3, fallback="inner"
    )


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert Options.from_environment({"INAGG_CONTROLLER": URL, "INAGG_SLOTS": ""}).slots == 256


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("controller", "10.0.0.254:9560"),
        ("lane_bits", 12),
        ("slots", 0),
        ("slots", 1),
        ("slots", 48),
        ("address", "10.0.0.300"),
        ("switch_port", 511),
        ("fallback", "maybe"),
        ("setup_timeout_s", 0),
        ("slotz", 64),
        ("cpus", ""),
        ("cpus", "0,"),
        ("cpus", "3-1"),
        ("cpus", "-1"),
        ("cpus", "0-99999999999"),
        ("cpus", "1e1"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"inagg options: {setting}: "):
        Options(**{"controller": URL, setting: value})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "INAGG_CONTROLLER: Field required"),
        ({"INAGG_CONTROLLER": URL, "INAGG_LANE_BITS": "24"}, "INAGG_LANE_BITS: .*got 24"),
        ({"INAGG_CONTROLLER": URL, "INAGG_SLOTS": "many"}, "INAGG_SLOTS: .*got 'many'"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options.from_environment(environment)


def test_options_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Options(controller=URL).slots = 128  # type: ignore[misc]
