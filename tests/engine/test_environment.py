"""Environment variables: defaults, values and errors."""

from __future__ import annotations

import logging

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning
from optax_dtypefix._logging import LOGGER, set_up_logging
from optax_dtypefix._settings import Settings, read_settings

IDS = ("multi_steps", "zero_nans", "prodigy")
P = "OPTAX_DTYPEFIX"


def read(**variables: str) -> Settings:
    return read_settings({**variables, "PATH": "", "XLA_FLAGS": ""}, IDS)


def test_defaults() -> None:
    assert read() == Settings(True, frozenset(), None, frozenset(), False, "WARNING")


def test_every_variable() -> None:
    assert read(OPTAX_DTYPEFIX="on").enabled
    assert not read(OPTAX_DTYPEFIX="off").enabled
    assert read(OPTAX_DTYPEFIX_DISABLE="prodigy").disable == {"prodigy"}
    assert read(OPTAX_DTYPEFIX_DISABLE="all").disable == set(IDS)
    assert read(OPTAX_DTYPEFIX_ONLY=" zero_nans , prodigy ").only == frozenset(
        {"zero_nans", "prodigy"}
    )
    assert read(OPTAX_DTYPEFIX_ENABLE="prodigy").enable == {"prodigy"}
    assert read(OPTAX_DTYPEFIX_STRICT="1").strict
    assert not read(OPTAX_DTYPEFIX_STRICT="0").strict
    assert read(OPTAX_DTYPEFIX_LOG="debug").log_level == "DEBUG"
    assert read(OPTAX_DTYPEFIX_LOG="info").log_level == "INFO"


@pytest.mark.parametrize("name", ["", "_DISABLE", "_ONLY", "_ENABLE", "_STRICT", "_LOG"])
def test_an_empty_variable_counts_as_unset(name: str) -> None:
    for empty in ("", " "):
        assert read(**{f"{P}{name}": empty}) == read()


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        (P, "true", "Set it to 'on' or 'off'"),
        (P, "OFF", "Set it to 'on' or 'off'"),
        (f"{P}_STRICT", "yes", "Set it to '0' or '1'"),
        (f"{P}_LOG", "INFO", "Set it to 'warning' or 'info' or 'debug'"),
        (f"{P}_DISABLE", "prodigy,", "patch ids separated by commas"),
        (f"{P}_ONLY", ",", "patch ids separated by commas"),
        (f"{P}_ENABLE", "prodigy,,zero_nans", "patch ids separated by commas"),
    ],
)
def test_an_invalid_value_raises_with_the_allowed_ones(
    variable: str, value: str, allowed: str
) -> None:
    with pytest.raises(OptaxDtypeFixError) as caught:
        read(**{variable: value})
    message = str(caught.value)
    assert message.startswith(f"{variable}={value!r} ")
    assert allowed in message


@pytest.mark.parametrize("name", ["DISABLE", "ONLY", "ENABLE"])
def test_an_unknown_id_warns_with_a_suggestion(name: str) -> None:
    with pytest.warns(OptaxDtypeFixWarning, match="'multistep'.*Did you mean 'multi_steps'"):
        settings = read(**{f"{P}_{name}": "multistep,prodigy"})
    assert (settings.disabled_reason("prodigy") is None) == (name != "DISABLE")
    with pytest.warns(OptaxDtypeFixWarning, match="Valid: multi_steps, zero_nans, prodigy"):
        read(**{f"{P}_{name}": "xyz"})
    with pytest.raises(OptaxDtypeFixError, match="Did you mean 'multi_steps'"):
        read(**{f"{P}_{name}": "multistep", f"{P}_STRICT": "1"})


@pytest.mark.parametrize("several", ["prodigy multi_steps", "prodigy;multi_steps"])
def test_ids_without_commas_warn(several: str) -> None:
    with pytest.warns(OptaxDtypeFixWarning, match="Separate patch ids with commas"):
        read(OPTAX_DTYPEFIX_DISABLE=several)


def test_only_with_an_unknown_id_patches_nothing() -> None:
    with pytest.warns(OptaxDtypeFixWarning, match=".nothing is patched.. Did you"):
        settings = read(OPTAX_DTYPEFIX_ONLY="multistep")
    assert all(settings.disabled_reason(patch_id) for patch_id in IDS)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        (f"{P}_DISABLED", f"{P}_DISABLE"),
        (f"{P}_LOGLEVEL", f"{P}_LOG"),
        (f"{P}S", P),
        ("OPTAX_DTYPE_FIX", P),
        ("OPTAX_DTYPE_FIX_DISABLE", f"{P}_DISABLE"),
    ],
)
def test_a_misspelt_variable_warns(variable: str, meant: str) -> None:
    with pytest.warns(OptaxDtypeFixWarning, match=f"variable {variable} .*Did you mean '{meant}'"):
        assert read(**{variable: "off"}) == read()
    with pytest.raises(OptaxDtypeFixError, match=variable):
        read(**{variable: "off", f"{P}_STRICT": "1"})


@pytest.mark.parametrize("variable", ["OPTAX_SEED", "OPTAX_HOME", "MY_OPTAX_DTYPEFIX"])
def test_other_variables_are_ignored(variable: str, caplog: pytest.LogCaptureFixture) -> None:
    assert read(**{variable: "off"}) == read()
    assert not caplog.text


def test_disabled_reasons() -> None:
    assert (
        read(OPTAX_DTYPEFIX="off").disabled_reason("prodigy")
        == "switched off by OPTAX_DTYPEFIX=off"
    )
    named = read(OPTAX_DTYPEFIX_DISABLE="prodigy", OPTAX_DTYPEFIX_ONLY="prodigy,zero_nans")
    assert named.disabled_reason("prodigy") == "switched off by OPTAX_DTYPEFIX_DISABLE"
    assert named.disabled_reason("multi_steps") == "not in OPTAX_DTYPEFIX_ONLY"
    assert named.disabled_reason("zero_nans") is None


def test_the_log_level_of_the_program_is_kept() -> None:
    level = LOGGER.level
    try:
        LOGGER.setLevel("DEBUG")
        set_up_logging("WARNING")
        assert LOGGER.level == logging.DEBUG
        LOGGER.setLevel(logging.NOTSET)
        set_up_logging("WARNING")
        assert LOGGER.level == logging.WARNING  # The level of the root logger does not count.
    finally:
        LOGGER.setLevel(level)


def test_logging_shows_the_requested_levels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LOGGER, "handlers", [])
    monkeypatch.setattr(LOGGER, "propagate", True)
    level = LOGGER.level
    try:
        set_up_logging("WARNING")
        LOGGER.info("quiet")
        assert LOGGER.handlers == []  # Left to the application.
        set_up_logging("INFO")
        set_up_logging("INFO")
        LOGGER.info("loud")
        LOGGER.debug("quiet")
    finally:
        LOGGER.setLevel(level)
    assert capsys.readouterr().err == "optax_dtypefix INFO: loud\n"
