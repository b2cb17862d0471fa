"""The command line: verbs, streams, exit status."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

import atarirb
from atarirb import cli
from tests.logs import record

SAMPLES = pathlib.Path(__file__).parent / "data" / "samples"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cli") / "Breakout/1"
    assert cli.main(["ingest", "-q", str(SAMPLES / "Breakout/1"), str(directory)]) == 0
    return directory


def run(capfd, *arguments):
    status = cli.main(list(map(str, arguments)))
    out, err = capfd.readouterr()
    return status, out, err


def test_ingest_shows_what_it_made(tmp_path, capfd):
    status, out, err = run(capfd, "ingest", SAMPLES / "Asterix/2", tmp_path / "a", "--splits", "0-2,5")
    assert (status, err) == (0, "")
    assert "steps     3,9" in out
    assert "in 4 split(s): 0-2, 5" in out
    assert "1 hole(s)" in out


def test_quiet_prints_nothing(tmp_path, dataset, capfd):
    for arguments in [
        ("ingest", SAMPLES / "Asterix/2", tmp_path / "a"),
        ("show", dataset),
        ("verify", dataset),
    ]:
        assert run(capfd, arguments[0], "-q", *arguments[1:]) == (0, "", "")


def test_json_is_what_the_functions_return(dataset, capfd):
    for verb, field, value in [
        ("show", "steps", 7399),
        ("verify", "problems", []),
        ("env", "atarirb", atarirb.__version__),
    ]:
        status, out, err = run(capfd, verb, "--json", *([dataset] if verb != "env" else []))
        assert (status, err) == (0, "")
        assert json.loads(out)[field] == value


def test_bench_gives_rates_of_every_kind(dataset, capfd):
    status, out, _ = run(capfd, "bench", "--json", "--seconds", "0.01", "-n", "32", dataset)
    result = json.loads(out)
    assert status == 0
    assert set(result["batches"]) == {
        "sample(32)", "sample(32), frame_stack=4", "sample_slices(16, 64)", "copy"
    }  # fmt: skip
    assert all(rate["steps_per_s"] > 0 for rate in result["batches"].values())
    status, out, _ = run(capfd, "bench", "--seconds", "0.01", dataset)
    assert re.search(r"sample\(256\) +[\d.]+ ms +[\d,]+ steps/s +[\d.]+ GB/s", out)


def test_verify_fails_with_the_problems_on_stderr(dataset, tmp_path, capfd):
    import shutil

    shutil.copytree(dataset, tmp_path / "copy")
    (tmp_path / "copy/00003/action.npy").write_bytes(b"")
    status, out, err = run(capfd, "verify", tmp_path / "copy")
    assert (status, out) == (1, "")
    assert "1 problem(s)" in err
    assert "00003/action.npy: 0 bytes" in err
    status, out, err = run(capfd, "verify", "--deep", dataset)
    assert (status, err) == (0, "")
    assert "sound; 57 files" in out


def test_preview_says_where_the_picture_is(dataset, tmp_path, capfd):
    pytest.importorskip("PIL")
    status, out, _ = run(capfd, "preview", dataset, "--frames", "8", "--out", tmp_path / "a.png")
    assert (status, out) == (0, f"{tmp_path / 'a.png'}\n")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["show", "nowhere"], 1, "atarirb show: no dataset at 'nowhere'"),
        (["ingest", "nowhere/Pnog/1", "out"], 1, "did you mean 'Pong/1'"),
        (["ingest", str(SAMPLES / "Pong/1"), "out", "--splits", "9"], 2, "no split 9"),
        (["ingest", str(SAMPLES / "Pong/1"), "out", "--workers", "0"], 2, "workers is 0"),
    ],
)
def test_failures_are_one_clear_sentence(arguments, status, words, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, out, err = run(capfd, *arguments)
    assert (found, out) == (status, "")
    assert words in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [[], ["fly"], ["show"], ["ingest", "a", "b", "--splits", "3-1"], ["ingest", "a", "b", "--splits", "x"]],
)
def test_wrong_usage_exits_with_2(arguments, capfd):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: atarirb" in capfd.readouterr().err


def test_an_interrupt_says_how_to_go_on(dataset, capfd, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("atarirb.verbs.ingest.ingest", interrupted)
    status, out, err = run(capfd, "ingest", SAMPLES / "Pong/1", tmp_path / "out")
    assert (status, out, err) == (130, "", "interrupted; the same command goes on from here\n")


def test_a_reader_of_the_output_may_leave_early(dataset):
    command = f"{sys.executable} -m atarirb show {dataset} | true"
    answer = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert answer.stderr == ""


def test_python_m_atarirb_is_the_command(dataset):
    answer = subprocess.run(
        [sys.executable, "-m", "atarirb", "show", str(dataset)], capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith("Breakout/1")


def test_every_verb_is_a_function():
    for verb in ("ingest", "show", "verify", "preview", "bench", "env"):
        assert callable(getattr(atarirb, verb))
        assert verb in dir(atarirb)


def test_a_log_that_contradicts_itself_is_reported_by_split(tmp_path, capfd):
    record(tmp_path / "Game/1", [30, 40], 30)
    (tmp_path / "Game/1/replay_logs/$store$_reward_ckpt.1.gz").write_bytes(b"no")
    status, out, err = run(capfd, "ingest", tmp_path / "Game/1", tmp_path / "out")
    assert (status, out) == (1, "")
    assert "1 of 3 splits of" in err
    assert "split 1: $store$_reward_ckpt.1.gz: neither gzip nor npy" in err
