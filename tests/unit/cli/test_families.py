"""The list of the families agrees with the families themselves."""

from __future__ import annotations

import pytest

from sluice.cli.app import FAMILIES, Family, main


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_listed_help_is_the_first_line_of_the_familys_own_help(family: Family) -> None:
    assert (family.load().help or "").partition("\n")[0] == family.help


def test_a_family_is_listed_once() -> None:
    names = [family.name for family in FAMILIES]
    assert names == list(dict.fromkeys(names))


@pytest.mark.parametrize(("family", "verb"), [(one, verb) for one in FAMILIES for verb in one.verbs])
def test_a_verb_has_a_function_with_a_help_of_its_own(family: Family, verb: str) -> None:
    command = family.load_verb(verb)
    assert command.name == verb
    assert command.help


def test_a_mistyped_verb_is_answered_with_those_that_are_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stream", "stat"])
    assert ended.value.code == 2
    assert "'start', 'status', 'restart'" in capsys.readouterr().err
