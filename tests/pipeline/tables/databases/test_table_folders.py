"""Folders of tables: no two names share one, whatever letters they have."""

from hypothesis import given
from hypothesis import strategies as st

from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.tables.databases.table_folders import TableFolders, folder_name
from firetrail.pipeline.tables.files.table_manifest import MemberTable

LETTERS = st.one_of(st.sampled_from("aAbB_~-./ 2ßẞéÉ"), st.characters())
NAMES = st.one_of(
    st.text(LETTERS, max_size=6),
    st.text(LETTERS, max_size=3).map("{}__rejected".format),
    st.just("a__REJECTED"),
)


def test_names_that_stay_and_names_that_do_not() -> None:
    names = [
        "orders",
        "Orders_2-x",
        "订单",
        "a.b",
        "_a",
        "a__rejected",
        "__rejected",
        "",
        "~",
        "\ud800",
    ]
    assert [folder_name(name) for name in names] == [
        *("orders", "Orders_2-x", "订单", "a~2eb", "~5fa", "a~5f_rejected", "~5f_rejected"),
        *("~", "~7e", "~ed~a0~80"),
    ]


@given(st.lists(st.tuples(NAMES, NAMES), unique=True, max_size=30), st.booleans(), st.text("oO_."))
def test_no_two_names_share_a_folder(
    pairs: list[tuple[str, str]], nested: bool, prefix: str
) -> None:
    names = list(dict.fromkeys(TableName(d if nested else "", t) for d, t in pairs))
    folders = TableFolders((), prefix)
    found = {name: folders.folder(name, nested=nested) for name in names}
    assert len({folder.casefold() for folder in found.values()}) == len(names)
    parents: dict[str, str] = {}
    for name, folder in found.items():
        for part in folder.split("/"):
            assert part
            assert not part.startswith(("_", "."))
            assert not part.casefold().endswith("__rejected")
            assert not set(part) & set("./\\%[]^|\0 '\"")
        if nested:
            parent = parents.setdefault(folder.split("/")[0].casefold(), name.database)
            assert parent == name.database
    known = [MemberTable(name, folder, 1) for name, folder in found.items()]
    again = TableFolders(known, "other")
    assert {name: again.folder(name, nested=nested) for name in reversed(names)} == found


def test_long_names_stay_different() -> None:
    names = [TableName("d" * 400, "n" * 400 + end) for end in ("a", "b", "A")]
    folders = TableFolders((), "")
    found = {folders.folder(name, nested=True) for name in names}
    assert len({folder.casefold() for folder in found}) == 3
    assert all(len(part.encode()) < 230 for folder in found for part in folder.split("/"))
