"""Make the golden log, its datasets and what a reader must answer.

Run only when the format gets a new version: ``python -m tests.make_golden``, into a new folder beside
the old ones, which are read for ever.
"""

import json
import pathlib
import shutil

import numpy as np
import zstandard

import atarirb
from tests.logs import record

GOLDEN = pathlib.Path(__file__).parent / "data" / "golden"


def main() -> None:
    """Write everything anew."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    play = record(
        GOLDEN / "logs/Game/1",
        [9, 17, 4, 30, 1, 22],
        40,
        frame_shape=(8, 6),
        unfinished=5,
        extra={"lives": ((), np.int8)},
    )
    for codec in ("raw", "packed"):
        atarirb.ingest(GOLDEN / "logs/Game/1", GOLDEN / f"v2-{codec}/Game/1", codec=codec)
    # Another libzstd may make other blocks of the same frames.
    (GOLDEN / "versions.json").write_text(json.dumps({"zstd": zstandard.ZSTD_VERSION}) + "\n")
    steps = np.flatnonzero(play.logged)
    expected = {"action": play.action[steps], "lives": play.extra["lives"][steps]}
    # From the play, not by the reader: what a ten-line loop says.
    shape = (len(steps), 8, 6, 4)
    observation, following = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    scalars = {name: np.zeros(len(steps), np.float32) for name in ("reward", "discount")}
    flags = {name: np.zeros(len(steps), bool) for name in ("terminated", "truncated")}

    def stack(step: int) -> np.ndarray:
        frames = np.zeros((8, 6, 4), np.uint8)
        for back in range(4):
            frames[..., 3 - back] = play.frames[step - back]
            if play.first[step - back] or step - back - 1 not in steps:
                break
        return frames

    for row, step in enumerate(steps):
        observation[row] = stack(step)
        total = 0.0
        for ahead in range(3):
            total += 0.99**ahead * float(play.reward[step + ahead])
            if play.terminal[step + ahead] or step + ahead + 1 not in steps:
                break
        end = step + ahead
        flags["terminated"][row] = play.terminal[end]
        flags["truncated"][row] = not play.terminal[end] and end + 1 not in steps
        scalars["reward"][row] = total
        scalars["discount"][row] = 0 if play.terminal[end] else 0.99 ** (ahead + 1)
        if not play.terminal[end] and end + 1 in steps:
            following[row] = stack(end + 1)
    expected |= {"observation": observation, "next.observation": following}
    expected |= {f"next.{name}": values for name, values in (scalars | flags).items()}
    with atarirb.open(GOLDEN / "v2-raw/Game/1", frame_stack=4, n_step=3) as reader:
        expected["drawn"] = reader.sample(7, 16)["index"]
        expected["slices"] = reader.sample_slices(7, 4, 5)["index"]
    np.savez_compressed(GOLDEN / "expected.npz", **expected)


def recorded() -> tuple[np.ndarray, np.ndarray]:
    """Return what the golden recording holds: frames uint8[12, 8, 6], and the two final ones."""
    frames = (np.arange(14 * 48) * 37 % 251).astype(np.uint8).reshape(14, 8, 6)
    return np.delete(frames, (5, 13), axis=0), frames[[5, 13]]


def record_anew(path: pathlib.Path) -> None:
    """Record two episodes: one of 5 steps that terminates, and one of 7 that is truncated."""
    frames, finals = recorded()
    with atarirb.Recorder(path, name="Game/me", clip_rewards=True) as recorder:
        for step, frame in enumerate(frames):
            ends = {4: 0, 11: 1}.get(step)
            final = None if ends is None else finals[ends]
            recorder.add(frame, step % 3, step - 4, step == 4, step == 11, final_observation=final)
    shutil.rmtree(path / ".recording")


if __name__ == "__main__":
    main()
    record_anew(GOLDEN / "v2-recorded/Game/me")
