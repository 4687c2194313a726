"""A store stays where it was opened, whatever the process makes its working folder."""

from pathlib import Path

import pytest
from tests.helpers import small_config

from firetrail import Message, Store


def test_files_created_later_go_to_the_opened_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    with Store.open("store", small_config(units=50, entries=100)) as store:
        monkeypatch.chdir(elsewhere)
        for number in range(60):
            store.put(Message("T", b"%d" % number, keys=["k"]))
        assert store.wait_dispatched()
    assert not list(elsewhere.iterdir())
    assert len(list((here / "store" / "commitlog").iterdir())) > 1
    with Store.open(here / "store") as store:
        assert store.max_offset("T") == 60
