"""`split`: what each program computes, what is kept between them, and that nothing is made which nobody wants."""

import torch
from captured import BIAS, WEIGHTS, op_names, simple_body

from edbatch.cells.body.split import inference, split


def split_for(body, need_rows=True, need_shared=True, need_outs=True):
    return split(
        body, [need_rows] * len(body.rows), [need_shared] * len(body.shared), [need_outs] * len(body.outputs),
        sparse=frozenset(),
    )  # fmt: skip


def test_forward_saves_what_backward_reads():
    plan = split_for(simple_body(lambda x: x.tanh().exp()))
    assert op_names(plan.body, plan.forward.ops) == ["tanh", "exp"]
    assert op_names(plan.body, plan.backward.ops) == ["mul", "tanh_backward"]
    stored = {place.text: op_names(plan.body, [value.index]) for place, value in plan.forward.dests.items()}
    assert stored == {"outs[0]": ["exp"], "saved[0]": ["tanh"]}  # exp is an output already


def test_what_lies_behind_a_view_is_saved():
    plan = split_for(simple_body(lambda x: x.tanh().view(2, 2).sin()))
    assert [spec.shape for spec in plan.saved] == [(4,)]  # backward makes the view again
    assert "view" in op_names(plan.body, plan.backward.ops)


def test_gradients_of_weights_wait_for_the_end():
    plan = split_for(simple_body(lambda x: (x @ WEIGHTS[0] + BIAS).tanh()))
    assert op_names(plan.body, plan.backward.ops) == ["tanh_backward", "view", "mm", "view"]
    assert [spec.shape for spec in plan.deferred] == [(4,)]  # the gradient before tanh, of every row
    assert sorted(op_names(plan.body, plan.finish.ops)[-2:]) == ["sum_products", "sum_rows"]
    assert plan.backward.sums == ()


def test_without_wanted_gradients_forward_is_inference():
    body = simple_body(lambda x: (x @ WEIGHTS[0]).tanh().exp())
    plan = split_for(body, need_rows=False, need_shared=False)
    assert (plan.forward.ops, plan.forward.dests) == (inference(body).forward.ops, inference(body).forward.dests)
    assert (plan.saved, plan.deferred, plan.backward.ops, plan.finish.ops) == ((), (), (), ())


def test_rows_and_outputs_are_not_saved_again():
    assert split_for(simple_body(torch.sigmoid)).saved == ()
    assert split_for(simple_body(torch.sin)).saved == ()


def test_ops_of_the_cell_keep_their_numbers():
    body = simple_body(lambda x: (x @ WEIGHTS[0]).tanh())
    plan = split_for(body)
    assert len(plan.body.ops) > len(body.ops)
    assert plan.body.head() == body
    assert plan.backward.returns == body.row_grads
