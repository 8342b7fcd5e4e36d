"""`python -m accel_geo inspect`: where it cannot write is told before anything is read."""

import pytest

from accel_geo import __main__ as command


@pytest.fixture
def ended(monkeypatch, capsys):
    """A function that runs a command that must end with a message and the code 1, and returns the message."""

    def ended(*arguments: object) -> str:
        monkeypatch.setattr("os._exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
        with pytest.raises(SystemExit) as end:
            command.main(["inspect", *map(str, arguments)])
        assert end.value.code == 1
        return capsys.readouterr().err

    return ended


@pytest.mark.parametrize("option", ["--picture", "--html"])
def test_places_that_cannot_be_written(tmp_path, ended, option):
    assert f"{tmp_path} is a folder; give the name of a file" in ended("gone", option, tmp_path)
    assert f"there is no folder {tmp_path / 'no'}" in ended("gone", option, tmp_path / "no" / "a.png")
    assert "gone does not exist" in ended("gone", option, tmp_path / "a.png")
