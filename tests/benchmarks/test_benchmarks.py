"""The benchmarks run and say what they should. What they measure is never asserted."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import grpc_servers, replicas, report
from benchmarks.bench import Bench, Scale, Snapshot
from benchmarks.contestants import JAVAS, ROOT, RunError, firetrail
from benchmarks.figures import Line, Samples, Unit, samples
from benchmarks.load import BODY, QUEUES, batch_body, message, some_keys
from benchmarks.measurements import MEASUREMENTS
from interop.servers import MASTER

from firetrail import Store
from firetrail.format.batch import decode_batch

TINY = Scale(
    put=200,
    batch=100,
    sync=32,
    warm=10,
    warm_sync=16,
    rounds=1,
    keys=20,
    scan=100_000,
    recover=200_000,
    open_small=50_000,
    lag=2,
    crowd=20,
    crowd_s=2,
    readable=20,
    grpc_warm=5,
    grpc=6,
    relayed=7,
    timers=400,
    replicated=200_000,
    log_size=1 << 20,
)


def fast(*values: float) -> Samples:
    return Samples(Unit.MESSAGES, values)


def seconds(*values: float) -> Samples:
    return Samples(Unit.SECONDS, values)


@pytest.mark.parametrize("name", [*MEASUREMENTS, "readable", "crowd", "timers"])
def test_every_measurement_runs(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    bench = Bench(tmp_path, TINY, (), 1, said.append)
    lines = command.measure(bench, [name])[name]
    assert lines
    assert all(value > 0 for line in lines for value in line.ours.values)
    assert {line.baseline for line in lines} <= {"", "memcpy"}
    assert said[0] == name
    assert not list(tmp_path.iterdir()), "every store is removed"


def test_every_part_of_the_page_says_how_much_it_measures() -> None:
    assert TINY.amounts.keys() == command.PARTS.keys()


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"worker get .*(?s:.*)NotAStoreError"):
        (tmp_path / "notes.txt").write_text("no store")
        firetrail("get", tmp_path, rounds=1, slices=False)


def test_releases_are_those_of_the_peer() -> None:
    pom = (ROOT / "interop" / "java" / "pom.xml").read_text(encoding="utf-8")
    for java in JAVAS:
        assert f"<rocketmq.version>{java.version}</rocketmq.version>" in pom


class TestLoad:
    def test_messages_have_keys_tags_and_queues_by_their_number(self) -> None:
        assert message(6).encode_properties() == b"KEYS\x01key-6 order-6\x02TAGS\x01tagA\x02"
        assert {message(number).queue_id for number in range(9)} == set(range(QUEUES))

    def test_a_batch_holds_the_same_messages(self) -> None:
        items = decode_batch(batch_body(5, 3))
        assert [item.properties for item in items] == [
            message(number).encode_properties() for number in (5, 6, 7)
        ]
        assert {item.body for item in items} == {BODY}

    def test_keys_differ_and_stay_the_same(self) -> None:
        keys = some_keys(50, 100)
        assert len(set(keys)) == 50
        assert keys == some_keys(50, 100)


class TestSnapshot:
    def test_brings_a_store_back(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        firetrail("fill", store, size=1, settings=TINY.settings, kill=True)
        before = sorted(path.name for path in store.rglob("*"))
        snapshot = Snapshot(store)
        with Store.open(store) as opened:
            opened.put(message(1))
        (store / "commitlog" / "new").touch()
        assert not (store / "abort").exists()
        snapshot.restore()
        snapshot.warm_up()
        assert sorted(path.name for path in store.rglob("*")) == before

    def test_leaves_out_what_it_is_told_to(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        firetrail("fill", store, size=1, settings=TINY.settings)
        Snapshot(store).restore(without=["checkpoint", "index"])
        left = {path.name for path in store.iterdir()}
        assert {"commitlog", "consumequeue"} <= left
        assert not {"checkpoint", "index"} & left


class TestFigures:
    @pytest.mark.parametrize(
        ("unit", "value", "shown"),
        [
            (Unit.MESSAGES, 412_345, "412 k/s"),
            (Unit.MESSAGES, 3_912_345, "3.91 M/s"),
            (Unit.MESSAGES, 12, "12.0 /s"),
            (Unit.BYTES, 8.04e9, "8.04 GB/s"),
            (Unit.MEMORY, 69.9e6, "69.9 MB"),
            (Unit.MEMORY, 29_500, "29.5 kB"),
            (Unit.SECONDS, 1.5, "1.50 s"),
            (Unit.SECONDS, 0.0381, "38.1 ms"),
            (Unit.SECONDS, 4e-6, "4.00 µs"),
            (Unit.SECONDS, 4e-7, "0.40 µs"),
            (Unit.SHARE, 0.699, "69.9 %"),
            (Unit.SHARE, 0, "0.00 %"),
        ],
    )
    def test_figures_are_shown_with_their_unit(self, unit: Unit, value: float, shown: str) -> None:
        assert unit.show(value) == shown

    def test_best_and_median_depend_on_the_unit(self) -> None:
        assert (fast(1, 2, 9).best, fast(1, 2, 9).median) == (9, 2)
        assert (seconds(1, 2, 9).best, seconds(1, 2, 9).median) == (1, 2)

    def test_a_ratio_above_one_is_good_for_rates_and_for_times(self) -> None:
        assert Line("put", fast(300), "Java", fast(100)).ratio == 3
        assert Line("open", seconds(1), "Java", seconds(3)).ratio == 3
        assert Line("open", seconds(1, 2, 2), "Java", seconds(3, 4, 5)).median_ratio == 2

    def test_there_is_no_ratio_to_nothing(self) -> None:
        line = Line("found", Samples(Unit.SHARE, (1,)), "Java", Samples(Unit.SHARE, (0,)), wanted=1)
        assert (line.ratio, line.met) == (None, None)

    @pytest.mark.parametrize(
        ("line", "met"),
        [
            (Line("put", fast(300), "Java", fast(100), wanted=3), True),
            (Line("put", fast(299), "Java", fast(100), wanted=3), False),
            (Line("put", fast(300), "Java", fast(100)), None),
            (Line("put", fast(300), wanted=3), None),
            (Line("lag", seconds(0.004), limit=0.005), True),
            (Line("lag", seconds(0.006), limit=0.005), False),
        ],
    )
    def test_whether_the_goal_is_met(self, line: Line, met: bool | None) -> None:
        assert line.met is met

    def test_samples_of_answers(self) -> None:
        answers = [{"mean_us": 2}, {"mean_us": 4}]
        assert samples(Unit.SECONDS, answers, "mean_us", 1e-6).values == pytest.approx((2e-6, 4e-6))


LINES = [
    Line("put", fast(2e6, 4e6, 3e6), "Java 4", fast(1e6, 2e6, 1e6), wanted=4),
    Line("put", fast(2e6, 4e6, 3e6), "Java 5", fast(1e6, 1e6, 1e6)),
    Line("lag", seconds(0.001), limit=0.005),
]


class TestReport:
    def test_the_table_shows_every_contestant_and_its_ratio(self) -> None:
        rows = [
            [cell.strip() for cell in row.strip("|").split("|")]
            for row in report.table(LINES).splitlines()
        ]
        assert [row[:5] for row in rows[2:]] == [
            ["put", "4.00 M/s (3.00 M/s)", "Java 4", "2.00 M/s (1.00 M/s)", "2.00 (3.00)"],
            ["", "", "Java 5", "1.00 M/s (1.00 M/s)", "4.00 (3.00)"],
            ["lag", "1.00 ms", "-", "-", "-"],
        ]
        assert [row[5:] for row in rows[2:]] == [["≥ 4", "missed"], ["", ""], ["≤ 5.00 ms", "✓"]]

    def test_the_table_of_the_page_says_which_targets_were_missed(self) -> None:
        rows = [
            [cell.strip() for cell in row.strip("|").split("|")]
            for row in report.page_table(LINES).splitlines()
        ]
        assert rows[2:] == [
            ["**put**", "4.00 M/s (3.00 M/s)", "", ""],
            ["Java 4", "2.00 M/s (1.00 M/s)", "2.00 (3.00)", "≥ 4 missed"],
            ["Java 5", "1.00 M/s (1.00 M/s)", "4.00 (3.00)", ""],
            ["**lag**", "1.00 ms", "", "≤ 5.00 ms ✓"],
        ]

    def test_only_the_generated_part_of_the_page_changes(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        other = f"{report.BEGIN.format(part='store')}\nother\n{report.END}\n"
        mark = report.BEGIN.format(part="brokers")
        page.write_text(f"{other}{mark}\nold\n{report.END}\nafter\n", encoding="utf-8")
        report.write_page("brokers", LINES, TINY, 3, page)
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"{other}{mark}\n")
        assert text.endswith(f"\n{report.END}\nafter\n")
        assert "old" not in text
        assert report.page_table(LINES) in text

    def test_a_machine_without_java_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert report.machine().endswith(", no Java")

    def test_a_page_without_the_marks_is_left_alone(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("mine\n", encoding="utf-8")
        with pytest.raises(ValueError, match="put them back"):
            report.write_page("store", LINES, TINY, 3, page)
        assert page.read_text(encoding="utf-8") == "mine\n"

    def test_the_page_has_the_marks(self) -> None:
        text = report.PAGE.read_text(encoding="utf-8")
        assert all(text.count(report.BEGIN.format(part=part)) == 1 for part in command.PARTS)
        assert text.count(report.END) == len(command.PARTS)

    def test_json_lines_contain_all_runs_and_ratios(self) -> None:
        line = json.loads(json.dumps(LINES[0].as_json()))
        assert line["firetrail"] == [2e6, 4e6, 3e6]
        assert (line["ratio_best"], line["ratio_median"], line["met"]) == (2, 3, False)


async def test_a_replica_catches_up_and_stays_close(tmp_path: Path) -> None:
    bench = Bench(tmp_path, TINY, (), 1, lambda text: None)
    firetrail("fill", tmp_path / "r" / replicas.NAME, size=200_000, settings=TINY.settings)
    async with replicas.running(bench, replicas.Pair(), MASTER, tmp_path / "r") as pair:
        _, ends = pair
        assert (await replicas.catch_up(ends, 0))["catch_up"] > 0
        assert await ends.of_replica() == await ends.of_master() > 200_000
        times = await replicas.lag(ends, 3)
        assert 0 < times["p50"] <= times["p99"]


class TestGrpcServing:
    NAMES = ("send", "receive", "relay")

    def figures(self) -> dict[str, float]:
        times = {f"{name}_{of}_s": 0.001 for name in self.NAMES for of in ("cpu", "client")}
        return {"send": 10.0, "receive": 10.0, "p50_s": 0.1, "p99_s": 0.2} | times

    def test_the_load_gets_a_service_with_its_topics(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loads: list[tuple[str, ...]] = []

        def last_line(words: list[str]) -> dict[str, float]:
            loads.append(tuple(words[-6:]))
            return self.figures()

        monkeypatch.setattr(grpc_servers, "last_line", last_line)
        monkeypatch.setattr(grpc_servers, "jars", str)
        bench = Bench(tmp_path, TINY, (), 1, lambda text: None)
        lines = command.measure(bench, ["grpc"])["grpc"]
        assert len(loads) == 1
        address, pid, *numbers = loads[0]
        assert address.startswith("127.0.0.1:")
        assert int(pid) > 0
        assert numbers == ["5", "6", "1000", "7"]
        assert all(value > 0 for line in lines for value in line.ours.values)
        assert not list(tmp_path.iterdir()), "the store is removed"

    def test_the_load_prints_every_figure(self) -> None:
        text = grpc_servers.LOAD.read_text(encoding="utf-8")
        assert all(f'"{name}"' in text for name in self.NAMES)
        assert all(
            f'\\"{name}\\"' in text for name in ("p50_s", "p99_s", "%s_cpu_s", "%s_client_s")
        )
        assert all(f'"{topic}"' in text for topic in grpc_servers.TOPICS)


class TestCommand:
    @pytest.mark.parametrize(
        "option", ["--quick", "--no-java", "--only=put", "--only=crowd", "--only=grpc"]
    )
    def test_only_a_complete_run_is_written(
        self, option: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            command.main([option, "--write"])
        assert ended.value.code == 2
        assert "complete runs" in capsys.readouterr().err

    def test_a_run_that_is_told_to_end_leaves_nothing_behind(self, tmp_path: Path) -> None:
        words = [sys.executable, "-m", "benchmarks", "--no-java", "--quick", "--only", "put"]
        with subprocess.Popen(
            [*words, "--dir", str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        ) as run:
            assert run.stderr is not None
            while "1 of" not in run.stderr.readline():
                assert run.poll() is None
            assert list(tmp_path.iterdir())
            run.terminate()
            assert run.wait(60) == 128 + signal.SIGTERM
        assert not list(tmp_path.iterdir())

    def test_names_are_checked(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            command.main(["--only", "speed"])
        assert "put" in capsys.readouterr().err
