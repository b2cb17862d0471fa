"""Play an Atari game and log the play in the original layout.

The logs' preprocessing: sticky actions (each emulator frame repeats the last action with probability
0.25), frame skip 4, maximum over the last two frames, grey, 84x84 by area interpolation, the game's
minimal action set, rewards clipped to {-1, 0, 1}. An episode ends at game over, never at a lost life, or
after 27,000 steps; both are stored as terminal = 1.
Play is a function of (game, steps, seed, policy).

    <out>/replay_logs/   the log, see `benchmarks.ring_log`
    <out>/truth.npz      the play, one row a step: frame_crc32 (of the frame's 7,056 bytes), action,
                         reward, terminal, add_id, logged (False where no file holds the step)
    <out>/play.json      the arguments

`<out>` appears at once when all is written. Where it is there already with the same arguments, nothing
is done.

    python -m benchmarks.play Pong --steps 110000 --capacity 100000 --out build/bench/logs/Pong/1
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.ring_log import RingLog

CATALOG = Path(__file__).parents[1] / "atarirb" / "catalog.json"
FRAME_SKIP = 4
STICKINESS = 0.25
EPISODE_STEPS = 27_000
POLICIES = ("random",)


class Game:
    """One ALE game behind the logs' preprocessing.

    `observation` uint8[84, 84] is what the agent sees now: undefined from a game over to the next `reset`.
    """

    def __init__(self, name: str, *, seed: int):
        """Load the game's ROM.

        Args:
            name: The game's name in the logs, such as `SpaceInvaders`.
            seed: Seed of the emulator, which draws the sticky actions.

        Raises:
            ValueError: If the catalog has no such game.
            ImportError: If ale-py or OpenCV is missing.
        """
        try:
            import ale_py
            import cv2
            from ale_py import roms
        except ImportError as error:
            raise ImportError(
                f"playing needs ale-py and OpenCV: pip install 'atarirb[bench]' ({error})"
            ) from error
        catalog = json.loads(CATALOG.read_text())
        if name not in catalog:
            raise ValueError(
                f"expected one of the catalog's games ({', '.join(sorted(catalog))}), found {name!r}"
            )
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        ale = ale_py.ALEInterface()
        ale.setInt("random_seed", seed)
        ale.setFloat("repeat_action_probability", STICKINESS)
        ale.loadROM(roms.get_rom_path(catalog[name]["rom"]))
        self._ale = ale
        self._actions = ale.getMinimalActionSet()
        self.n_actions = len(self._actions)
        self._resize = lambda frame: cv2.resize(frame, (84, 84), interpolation=cv2.INTER_AREA)
        self._screens = np.zeros((2, *ale.getScreenDims()), np.uint8)
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self._ale.reset_game()
        self._ale.getScreenGrayscale(self._screens[0])
        self.observation = self._resize(self._screens[0])

    def step(self, action: int) -> tuple[float, bool]:
        """Hold an action for four frames, or until the game is over.

        Args:
            action: Index into the minimal action set.

        Returns:
            The clipped reward, and whether the game is over.
        """
        reward = 0
        for frame in range(FRAME_SKIP):
            reward += self._ale.act(self._actions[action])
            if self._ale.game_over():
                break
            if frame >= FRAME_SKIP - 2:
                self._ale.getScreenGrayscale(self._screens[frame - (FRAME_SKIP - 2)])
        else:
            self.observation = self._resize(self._screens.max(0))
        return float(np.sign(reward)), self._ale.game_over()


def transitions(game: Game, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, int, float, bool]]:
    """Yield (observation, action, reward, terminal) of uniformly random play, without end."""
    while True:
        for step in range(1, EPISODE_STEPS + 1):
            observation = game.observation
            action = int(rng.integers(game.n_actions))
            reward, over = game.step(action)
            terminal = over or step == EPISODE_STEPS
            yield observation, action, reward, terminal
            if terminal:
                break
        game.reset()


def play(
    game: str,
    steps: int,
    out: str | Path,
    *,
    capacity: int,
    seed: int = 0,
    policy: str = "random",
    compresslevel: int = 9,
    progress: bool = False,
) -> bool:
    """Play a game and log it.

    Args:
        game: The game's name in the logs.
        steps: Agent steps to play (four frames each).
        out: The run's folder, made by this call.
        capacity: Slots of the replay buffer, so steps a file.
        seed: Seed of the emulator and of the policy.
        policy: How to act; only `random` is known.
        compresslevel: gzip level; the public logs are at 9.
        progress: Whether to show a bar on stderr.

    Returns:
        True if the game was played, False if the log was there already.

    Raises:
        FileExistsError: If `out` holds something else.
        ValueError: If the game or the policy is not known.
    """
    if policy not in POLICIES:
        raise ValueError(f"expected a policy in {POLICIES}, found {policy!r}")
    out = Path(out)
    wanted = {
        "game": game,
        "steps": steps,
        "capacity": capacity,
        "seed": seed,
        "policy": policy,
        "compresslevel": compresslevel,
    }
    if out.exists():
        note = out / "play.json"
        found = json.loads(note.read_text()) if note.exists() else None
        if found != wanted:
            raise FileExistsError(
                f"expected no {out} or one of {wanted}, found {found}; move it away to play anew"
            )
        return False
    source = transitions(Game(game, seed=seed), np.random.default_rng(seed))
    rows = np.empty(steps, [("frame_crc32", "u4"), ("action", "i4"), ("reward", "f4"), ("terminal", "u1")])
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        with RingLog(partial, capacity, compresslevel=compresslevel) as log:
            bar = tqdm(total=steps, desc=game, unit="step", disable=None if progress else True)
            for row, step in zip(rows, source, strict=False):
                log.add(*step)
                row["frame_crc32"] = zlib.crc32(step[0])
                row["action"], row["reward"], row["terminal"] = step[1:]
                bar.update()
            bar.close()
        truth = {name: rows[name] for name in rows.dtype.names}
        np.savez_compressed(partial / "truth.npz", **truth, add_id=log.add_id, logged=log.logged)
        (partial / "play.json").write_text(json.dumps(wanted) + "\n")
        # mkdtemp closes the folder to others, which a log need not be.
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return True


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.play", description="Play an Atari game and log it."
    )
    parser.add_argument("game", help="name in the logs, such as Pong")
    parser.add_argument("--steps", type=int, required=True, help="agent steps to play")
    parser.add_argument("--capacity", type=int, required=True, help="steps a file")
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", choices=POLICIES, default="random")
    parser.add_argument("--compresslevel", type=int, default=9, help="gzip level, 1-9")
    args = parser.parse_args(argv)
    played = play(**vars(args), progress=True)
    print(f"{args.out}: {'played' if played else 'there already, nothing to do'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
