"""The catalog of the public runs."""

import pytest

import atarirb
from atarirb import catalog
from atarirb.errors import UnknownGameError


def test_there_are_300_public_runs():
    names = atarirb.available_datasets()
    assert len(names) == len(set(names)) == 300
    assert (names[0], names[-1]) == ("AirRaid/1", "Zaxxon/5")
    assert "Pong/1" in names


def test_every_game_has_a_rom_and_actions():
    for name, game in catalog.games().items():
        assert game.name == name
        assert game.rom == game.rom.lower()
        assert list(game.minimal_actions) == sorted(set(game.minimal_actions))
        assert set(game.minimal_actions) <= set(range(18))


def test_the_actions_of_every_game_are_the_emulators():
    ale_py = pytest.importorskip("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    from ale_py import roms

    ale = ale_py.ALEInterface()
    for game in catalog.games().values():
        ale.loadROM(roms.get_rom_path(game.rom))
        assert tuple(action.value for action in ale.getMinimalActionSet()) == game.minimal_actions, game.name


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Pnog", "'Pong'"),
        ("pong/1", "'Pong/1'"),
        ("BreakOut/3", "'Breakout/3'"),
        ("Sequest/9", "'Seaquest/1'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(UnknownGameError, match=f"unknown game '{name}'; did you mean {nearest}"):
        catalog.game(name)


@pytest.mark.parametrize("name", ["mydata", "", "results/run3"])
def test_nothing_is_suggested_where_nothing_is_near(name):
    assert catalog.suggestion(name) == ""


@pytest.mark.parametrize("name", ["main/README.md", "data/Pnog", "Pong/1", "Pnog/mine"])
def test_a_path_that_looks_like_no_misspelt_id_gets_no_hint(name):
    assert catalog.hint(name) == ""


def test_a_path_that_looks_like_a_misspelt_id_gets_the_nearest():
    assert "did you mean 'Pong/1'" in catalog.hint("Pnog/1")


def test_a_run_of_ones_own_belongs_to_its_game():
    assert catalog.game("Pong/mine").rom == "pong"
