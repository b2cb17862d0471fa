"""Batches as PyTorch tensors: the same values, in the same memory, put where they are wanted."""

import gc
import pickle
import sys

import numpy as np
import pytest

import atarirb
from atarirb import outputs
from atarirb.errors import ArgumentError, MissingPackageError
from atarirb.outputs import torch as output
from tests import truth

torch = pytest.importorskip("torch")

COLUMNS = ("timestep", "episode", "return_to_go", "split", "wide", "pair")
CALLS = {
    "get": lambda reader: reader[[5, 1, 5, -1]],
    "none": lambda reader: reader[[]],
    "one": lambda reader: reader[7],
    "sample": lambda reader: reader.sample(3, 20),
    "many": lambda reader: reader.sample(3, 9_000),  # so large that its memory is of the pool
    "slices": lambda reader: reader.sample_slices(3, 5, 4),
    "many slices": lambda reader: reader.sample_slices(3, 2_000, 4),
    "padded slices": lambda reader: reader.sample_slices(3, 50, 12, strict_length=False),
}


@pytest.fixture(params=CALLS)
def batch(request, small):
    """Return what a call gives as NumPy arrays."""
    return CALLS[request.param](atarirb.open(small[0], frame_stack=3, n_step=2, columns=COLUMNS))


def address(tensor):
    return tensor.data_ptr()


def walk(batch, prefix=""):
    """Give a batch's leaves as they are, by name."""
    for name, leaf in batch.items():
        if isinstance(leaf, dict):
            yield from walk(leaf, f"{prefix}{name}.")
        else:
            yield prefix + name, leaf


def test_tensors_have_the_values_and_the_memory_of_the_arrays(batch):
    moved = output.put(batch)
    truth.assert_same(moved, batch)
    arrays = dict(walk(batch))
    for name, leaf in walk(moved):
        assert isinstance(leaf, torch.Tensor), name
        if leaf.numel():
            assert leaf.data_ptr() == arrays[name].ctypes.data, name
    assert moved["index"].dtype == torch.int64


def test_both_observations_of_slices_are_views_into_the_same_frames(small):
    batch = output.put(atarirb.open(small[0], n_step=2).sample_slices(3, 5, 4))
    before, after = batch["observation"], batch["next"]["observation"]
    assert after.data_ptr() - before.data_ptr() == 2 * 4 * 3
    before[:, 2] = 0
    assert (after[:, 0] == 0).all()
    assert (after[:, 1] != 0).all()


def test_tensors_keep_their_memory_and_never_change(small):
    reader = atarirb.open(small[0], frame_stack=4)
    tensors = output.put(reader.sample(0, 9_000))
    place = tensors["observation"].data_ptr()
    kept = {name: leaf.clone() for name, leaf in walk(tensors)}
    others = [reader.sample(key, 9_000) for key in range(1, 6)]
    assert place not in {leaf.ctypes.data for other in others for _, leaf in walk(other)}
    for name, leaf in walk(tensors):
        torch.testing.assert_close(leaf, kept[name], rtol=0, atol=0)
    view = tensors["observation"][3:5]
    del tensors, leaf
    gc.collect()
    others = [reader.sample(key, 9_000) for key in range(1, 6)]
    torch.testing.assert_close(view, kept["observation"][3:5], rtol=0, atol=0)
    del others
    del view
    gc.collect()
    again = reader.sample(7, 9_000)
    assert place in {leaf.ctypes.data for _, leaf in walk(again)}, "the memory was not given back"


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "int64", "float16", "float64"])
def test_frames_of_every_number_type_are_tensors(tmp_path, dtype):
    path, steps = truth.dataset(tmp_path, [5, 4], capacity=30, frame_dtype=dtype)
    batch = output.put(atarirb.open(path)[:])
    assert isinstance(batch["observation"], torch.Tensor)
    assert batch["observation"].numpy().dtype == dtype
    np.testing.assert_array_equal(batch["observation"].numpy(), steps.frames)


@pytest.mark.parametrize("device", [None, "meta"])
def test_columns_of_types_that_torch_lacks_stay_arrays(tmp_path, device):
    path, _ = truth.dataset(tmp_path, [5, 4], capacity=30, extra={"text": ((), "S4"), "day": ((), "M8[D]")})
    plain = atarirb.open(path, columns=["text", "day"])[:]
    moved = output.put(plain, device)
    for name in ("text", "day"):
        assert moved[name] is plain[name]


# Devices. There is none on the machines the tests run on but "meta", whose tensors have no values.


def test_all_but_the_index_goes_to_the_device(batch):
    for name, leaf in walk(output.put(batch, "meta")):
        assert leaf.device.type == ("cpu" if name == "index" else "meta"), name
        plain = dict(walk(batch))[name]
        assert leaf.shape == plain.shape
        assert leaf.dtype == torch.from_numpy(plain).dtype


def test_values_and_shared_frames_survive_a_move(batch, monkeypatch):
    """Pinning is a copy: another one in its place shows what is copied."""
    copied = []

    def pin_memory(tensor):
        copied.append(tensor.nbytes)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    moved = output.put(batch, pin=True)
    truth.assert_same(moved, batch)
    assert moved["observation"].numel() == 0 or not np.shares_memory(
        moved["observation"].numpy(), batch["observation"]
    )
    before, after = batch["observation"], batch["next"]["observation"]
    if "mask" in batch:
        frames = before.shape[0] * (before.shape[1] + 2) * before[0, 0].nbytes
        assert copied.count(frames) == 1
        assert max(copied) == frames
        stride = before[0, 0].nbytes
        assert address(moved["next"]["observation"]) - address(moved["observation"]) == 2 * stride
    else:
        assert copied.count(before.nbytes) >= 2
        assert max(copied) == max(after.nbytes, before.nbytes)


def test_few_steps_far_apart_are_moved_each_by_itself(small, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: sizes.append(tensor.nbytes) or tensor.clone()
    )
    batch = atarirb.open(small[0], n_step=10).sample_slices(3, 5, 2)
    truth.assert_same(output.put(batch, pin=True), batch)
    assert max(sizes) == batch["observation"].nbytes


def test_copies_to_a_device_are_announced_only_from_pinned_memory(small, monkeypatch):
    seen = []
    batch = atarirb.open(small[0]).sample(0, 5)
    move = torch.Tensor.to

    def to(tensor, device, non_blocking):
        seen.append(non_blocking)
        return move(tensor, device)

    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    monkeypatch.setattr(torch.Tensor, "to", to)
    for pin in (True, False):
        truth.assert_same(output.put(batch, "cpu", pin=pin), batch)
        assert set(seen) == {pin}
        seen.clear()


@pytest.mark.parametrize("device", ["elsewhere", "cuda:x", 1.5, object(), -1])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(ArgumentError, match="expected what torch.device takes"):
        output.check(device)


@pytest.mark.parametrize("device", [None, "cpu", "cuda", "cuda:7", "mps", torch.device("meta")])
def test_devices_are_accepted_by_name(device):
    output.check(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_pinning_without_cuda_is_refused():
    with pytest.raises(ArgumentError, match="pinned, which needs CUDA"):
        output.check(None, pin=True)


@pytest.mark.parametrize("device", [None, "cuda:1", torch.device("cuda", 1)])
def test_devices_are_packed(device):
    assert output.unpack_device(output.pack_device(device)) == device


def test_a_missing_torch_is_named_with_the_extra_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match=r"needs torch, .*pip install 'atarirb\[torch\]'"):
        output.check(None)


def test_every_output_has_the_same_face():
    assert outputs.module("numpy") is None
    for name in outputs.NAMES[1:]:
        module = outputs.module(name)
        for function in ("check", "put", "pack_device", "unpack_device"):
            assert callable(getattr(module, function)), (name, function)


def test_no_library_is_imported_before_it_is_used(small, python):
    code = """
        import sys
        import atarirb
        from atarirb.outputs import grain, jax, tensordict, torch
        atarirb.open(sys.argv[1]).sample(1, 9)
        print({"torch", "tensordict", "torchrl", "grain", "jax"} & set(sys.modules))
    """
    assert python(code, small[0]) == "set()\n"


# Through a reader.


@pytest.mark.parametrize("call", CALLS)
def test_a_reader_gives_tensors(small, call):
    options = {"frame_stack": 3, "n_step": 2, "columns": COLUMNS}
    plain, moved = (
        CALLS[call](atarirb.open(small[0], output=name, **options)) for name in ("numpy", "torch")
    )
    assert all(isinstance(leaf, torch.Tensor) for _, leaf in walk(moved))
    truth.assert_same(moved, plain)


def test_a_batch_is_read_again_by_its_index(small):
    reader = atarirb.open(small[0], output="torch")
    batch = reader.sample(1, 9)
    truth.assert_same(reader[batch["index"]], batch)
    np.testing.assert_array_equal(reader.locate(batch["index"]), reader.locate(batch["index"].numpy()))


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_a_reader_with_a_device_is_pickled(small, device):
    opened = atarirb.open(small[0], output="torch", device=device)
    for reader in (opened, pickle.loads(pickle.dumps(opened))):
        batch = reader.sample_slices(1, 9, 3)
        assert batch["action"].device == torch.device("meta")
        assert batch["index"].tolist() == atarirb.open(small[0]).sample_slices(1, 9, 3)["index"].tolist()


def test_where_tensors_go_is_checked_when_opening(small):
    with pytest.raises(ArgumentError, match="torch.device"):
        atarirb.open(small[0], output="torch", device="elsewhere")
    with pytest.raises(ArgumentError, match="pin_memory=True goes with output='torch'"):
        atarirb.open(small[0], pin_memory=True)
    with pytest.raises(ArgumentError, match="output='torch'"):
        atarirb.open(small[0], device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match="CUDA"):
            atarirb.open(small[0], output="torch", pin_memory=True)
