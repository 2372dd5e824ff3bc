"""Environment variables: defaults, values and errors."""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from optax_dtypefix import OptaxDtypeFixError, OptaxDtypeFixWarning
from optax_dtypefix._environment import read_variables, set_up_logging
from optax_dtypefix._logging import LOGGER
from optax_dtypefix._record import _list_variables
from optax_dtypefix._settings import Settings
from optax_dtypefix.patches import IDS as REAL_IDS
from optax_dtypefix.patches.catalogue import REMOVED

if TYPE_CHECKING:
    from collections.abc import Iterator

IDS = ("multi_steps", "zero_nans", "prodigy")
P = "OPTAX_DTYPEFIX"


def read(**variables: str) -> Settings:
    return read_variables({**variables, "PATH": "", "XLA_FLAGS": ""}, IDS)


def test_defaults() -> None:
    assert read() == (True, frozenset(), None, frozenset(), False, None, None, None)
    assert _list_variables(read()) == {}


def test_every_variable() -> None:
    assert read(OPTAX_DTYPEFIX="on").enabled
    assert not read(OPTAX_DTYPEFIX="off").enabled
    assert read(OPTAX_DTYPEFIX_DISABLE="prodigy").disable == {"prodigy"}
    for everything in ("all", "all,prodigy", "prodigy, all"):
        assert read(OPTAX_DTYPEFIX_DISABLE=everything).disable == set(IDS)
    with pytest.warns(OptaxDtypeFixWarning, match="Unknown patch 'prodgy'"):
        assert read(OPTAX_DTYPEFIX_DISABLE="all,prodgy").disable >= set(IDS)
    assert read(OPTAX_DTYPEFIX_ONLY=" zero_nans , prodigy ").only == frozenset(
        {"zero_nans", "prodigy"}
    )
    assert read(OPTAX_DTYPEFIX_ENABLE="prodigy").enable == {"prodigy"}
    assert read(OPTAX_DTYPEFIX_STRICT="1").strict
    assert not read(OPTAX_DTYPEFIX_STRICT="0").strict
    assert read(OPTAX_DTYPEFIX_LOG="debug").log_level == "debug"
    assert read(OPTAX_DTYPEFIX_LOG="info").log_level == "info"
    assert read(OPTAX_DTYPEFIX_LOG="warning").log_level == "warning"
    # Absolute: the program may change its folder.
    assert read(OPTAX_DTYPEFIX_REPORT="run-%p.json").report == str(Path("run-%p.json").absolute())
    assert read(OPTAX_DTYPEFIX_REQUIRE="/run.json").require == "/run.json"


@pytest.mark.parametrize(
    "name", ["", "_DISABLE", "_ONLY", "_ENABLE", "_STRICT", "_LOG", "_REPORT", "_REQUIRE"]
)
def test_an_empty_variable_counts_as_unset(name: str) -> None:
    for empty in ("", " "):
        assert read(**{f"{P}{name}": empty}) == read()


def test_the_variables_of_the_settings_can_be_set_again() -> None:
    variables = {
        P: "off",
        f"{P}_DISABLE": "prodigy",
        f"{P}_ONLY": "multi_steps,prodigy",
        f"{P}_ENABLE": "zero_nans",
        f"{P}_STRICT": "1",
        f"{P}_LOG": "debug",
        f"{P}_REPORT": "/report.json",
        f"{P}_REQUIRE": "/require.json",
    }
    assert _list_variables(read(**variables)) == variables


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


@pytest.mark.parametrize("word", ["ALL", "All", "al"])
def test_all_is_named_where_it_is_valid(word: str) -> None:
    with pytest.warns(OptaxDtypeFixWarning, match=r"\ball\b"):
        read(OPTAX_DTYPEFIX_DISABLE=word)


@pytest.mark.parametrize("word", ["ALL", "all"])
def test_all_where_it_is_not_valid_says_what_to_do(word: str) -> None:
    with pytest.warns(OptaxDtypeFixWarning, match="Name the opt-in patches: float32_moments"):
        read(OPTAX_DTYPEFIX_ENABLE=word)
    with pytest.warns(OptaxDtypeFixWarning, match="is patched.. Unset the variable: then all"):
        read(OPTAX_DTYPEFIX_ONLY=word)
    with pytest.raises(OptaxDtypeFixError, match="Unset the variable: then all patches"):
        read(OPTAX_DTYPEFIX_ONLY=word, OPTAX_DTYPEFIX_STRICT="1")


@pytest.mark.parametrize("several", ["prodigy multi_steps", "prodigy;multi_steps"])
def test_ids_without_commas_warn(several: str) -> None:
    with pytest.warns(OptaxDtypeFixWarning, match="Separate patch ids with commas"):
        read(OPTAX_DTYPEFIX_DISABLE=several)


def test_only_with_an_unknown_id_patches_nothing() -> None:
    with pytest.warns(OptaxDtypeFixWarning, match=".nothing is patched.. Did you"):
        settings = read(OPTAX_DTYPEFIX_ONLY="multistep")
    assert all(settings.disabled_reason(patch_id) for patch_id in IDS)


@pytest.mark.parametrize("name", ["DISABLE", "ONLY", "ENABLE"])
@pytest.mark.parametrize("removed", REMOVED)
@pytest.mark.parametrize("strict", "01")
def test_the_id_of_an_older_version_does_nothing_and_warns(
    name: str, removed: str, strict: str
) -> None:
    variables = {f"{P}_{name}": f"prodigy,{removed}", f"{P}_STRICT": strict}
    message = re.escape(f"Patch {removed!r} in {P}_{name} {REMOVED[removed]}")
    with pytest.warns(OptaxDtypeFixWarning, match=f"{message}$") as caught:
        found = read(**variables)
    assert len(caught) == 1
    assert found == read(**{**variables, f"{P}_{name}": "prodigy"})


def test_no_patch_has_the_id_of_an_older_version() -> None:
    assert not {*REMOVED} & {*REAL_IDS}


def test_only_with_the_id_of_an_older_version_patches_nothing() -> None:
    with pytest.warns(OptaxDtypeFixWarning, match=r"'every_transform'.* Nothing is patched\.$"):
        assert read(OPTAX_DTYPEFIX_ONLY="every_transform").only == frozenset()


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        (f"{P}_DISABLED", f"{P}_DISABLE"),
        (f"{P}_LOGLEVEL", f"{P}_LOG"),
        (f"{P}_REQUIRED", f"{P}_REQUIRE"),
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


@contextlib.contextmanager
def unconfigured_logging() -> Iterator[None]:
    """Take out the handlers of pytest, which it adds after the fixtures ran."""
    root, level = logging.getLogger(), (LOGGER.level, logging.getLogger().level)
    before, root.handlers, LOGGER.handlers = root.handlers, [], []
    LOGGER.setLevel(logging.NOTSET)
    try:
        yield
    finally:
        root.handlers, LOGGER.handlers = before, []
        LOGGER.setLevel(level[0])
        root.setLevel(level[1])


def test_warning_silences_a_program_that_logs_more(capsys: pytest.CaptureFixture[str]) -> None:
    with unconfigured_logging():
        logging.basicConfig(level="DEBUG", format="%(message)s")
        set_up_logging("warning")
        LOGGER.info("quiet")
        LOGGER.warning("loud")
        assert capsys.readouterr().err == "loud\n"


def test_an_unconfigured_program_shows_the_requested_levels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with unconfigured_logging():
        set_up_logging("info")
        set_up_logging("info")
        LOGGER.info("loud")
        LOGGER.debug("quiet")
        assert capsys.readouterr().err == "optax_dtypefix INFO: loud\n"


def test_a_program_that_configures_logging_gets_each_record_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with unconfigured_logging():
        set_up_logging("info")
        logging.basicConfig(format="root: %(message)s")  # Later than us.
        LOGGER.info("one")
        assert capsys.readouterr().err == "root: one\n"
        logging.getLogger().handlers.clear()
        own = logging.StreamHandler()
        LOGGER.addHandler(own)
        LOGGER.info("two")
        LOGGER.removeHandler(own)
        assert capsys.readouterr().err == "two\n"
        LOGGER.handlers.clear()
        logging.basicConfig(format="root: %(message)s")  # Earlier than us.
        set_up_logging("info")
        assert LOGGER.handlers == []
        LOGGER.info("three")
        assert capsys.readouterr().err == "root: three\n"
