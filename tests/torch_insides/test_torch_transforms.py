"""What we rely on of torch.func and of forward mode."""

import warnings

import pytest
import torch
from torch.autograd import forward_ad

from edbatch.torch_insides import transforms


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, lambda f: torch.func.vmap(torch.func.grad(f))])
def test_a_transform_is_seen_inside_of_it_and_so_are_its_tensors(transform):
    seen = []

    def look(x):
        seen.append((transforms.num_transforms(), transforms.innermost_transform(), transforms.is_wrapped(x)))
        return x.sum()

    transform(look)(torch.ones(3) if transform is torch.func.grad else torch.ones(3, 2))
    ((depth, innermost, wrapped),) = seen
    assert depth >= 1
    assert innermost is not None
    assert wrapped
    assert transforms.num_transforms() == 0
    assert transforms.innermost_transform() is None
    assert not transforms.is_wrapped(torch.ones(1))


def test_a_transform_that_was_left_behind_is_popped():
    depth = transforms.num_transforms()
    torch._C._functorch._vmap_increment_nesting(2, "error")
    assert transforms.num_transforms() == depth + 1
    transforms.pop_transform()
    assert transforms.num_transforms() == depth


def test_what_takes_any_tensor_is_found_in_the_modules_of_transforms():
    """Those are the functions that wrap and unwrap what a transform is given."""
    names = {name for _, name in transforms.UNCHECKED}
    assert names == {"_wrap_for_grad", "_unwrap_for_grad", "_add_batch_dim", "_remove_batch_dim"}
    assert all(callable(vars(module)[name]) for module, name in transforms.UNCHECKED)


@pytest.mark.parametrize("warns", [True, False])
def test_vmap_warns_of_a_loop_unless_told_not_to(warns):
    a = torch.rand(3, 4)
    transforms.set_vmap_warns(warns)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.func.vmap(torch.histc)(a)
    finally:
        transforms.set_vmap_warns(True)
    assert bool(caught) == warns


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, lambda f: lambda x: torch.func.jvp(f, x, x)])
def test_errors_inside_of_transforms_come_from_these_files(transform):
    with pytest.raises(Exception, match=r".") as caught:
        transform(lambda x: x)("nonsense")
    frames = [str(entry.path).replace("\\", "/") for entry in caught.traceback]
    assert any(part in frame for part in transforms.FILES for frame in frames)


def test_forward_mode_is_seen():
    assert not transforms.is_forward_mode()
    with forward_ad.dual_level():
        assert transforms.is_forward_mode()
    assert not transforms.is_forward_mode()


def test_vmap_ends_in_this_function():
    module, name = transforms.VMAP
    seen = []
    original = vars(module)[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, lambda *args, **kwargs: (seen.append(args[:5]), original(*args, **kwargs))[1])
        torch.vmap(torch.sin, 0, 0, randomness="same")(torch.ones(2))
    assert seen == [(torch.sin, 0, 0, "same", None)]
