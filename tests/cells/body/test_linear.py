"""What is linear: zeros vanish in it (`without_tangents`), and sums over rows move into it (`Summing`)."""

from captured import BIAS, VECTOR, WEIGHTS, op_names, simple_body
from torch.nn import functional as F

from edbatch.cells.body.body import Draft, Val
from edbatch.cells.body.linear import Summing, without_tangents


def absent_tangent(body, output):
    """The draft, and what became of every value, when there is no gradient of one output."""
    draft = Draft.of(body)
    return draft, without_tangents(draft, body, {body.tangent_of[output].index})


def summed_gradients(body):
    """How the gradients of shared tensors are added up: the ops that do it, and what is added up batch by batch."""
    draft = Draft.of(body)
    summing = Summing(draft, available=set(range(len(body.rows))))
    for gradient in body.shared_grads:
        summing.collect(gradient)
    for gradient in body.shared_grads:
        summing.summed(gradient)
    return op_names(draft, range(len(body.specs), len(draft.specs))), summing.sums


def test_of_a_sum_the_term_that_is_not_zero_is_left():
    body = simple_body(lambda x: (x * 2, x * 3))
    (gradient,) = body.row_grads
    assert op_names(body, [gradient.index]) == ["add"]
    draft, now = absent_tangent(body, 1)
    assert draft.op(now[gradient.index]).args == (body.tangent_of[0], 2)


def test_what_only_an_absent_gradient_flows_into_is_zero():
    body = simple_body(lambda x, y: (x.tanh(), y.exp() @ WEIGHTS[0]), VECTOR, VECTOR)
    _, now = absent_tangent(body, 1)
    assert now[body.row_grads[1].index] is None
    assert now[body.shared_grads[0].index] is None


def test_what_does_not_read_absent_gradients_stays():
    """Above all the numbers that dropout drew: backward has to see those of forward."""
    body = simple_body(lambda x, y: (F.dropout(x), y.tanh()), VECTOR, VECTOR)
    draft, now = absent_tangent(body, 1)
    assert draft.ops == list(body.ops)
    kept = [*body.outputs, body.row_grads[0]]
    assert [now[v.index] for v in kept] == kept


def test_without_absent_gradients_nothing_changes():
    body = simple_body(lambda x: (x * 2, F.dropout(x)))
    draft = Draft.of(body)
    assert without_tangents(draft, body, set()) == [Val(i) for i in range(len(body.specs))]
    assert draft.ops == list(body.ops)


def test_a_sum_of_outer_products_is_one_product():
    ops, batch_by_batch = summed_gradients(simple_body(lambda x: (x @ WEIGHTS[0]).tanh()))
    assert ops.count("sum_products") == 1
    assert not batch_by_batch


def test_the_sum_moves_into_linear_ops():
    """The gradient of a weight that is scaled: the product is summed over all rows, and scaled once."""
    ops, batch_by_batch = summed_gradients(simple_body(lambda x: x @ (WEIGHTS[0] * 2)))
    assert ops[-2:] == ["sum_products", "mul"]
    assert not batch_by_batch


def test_what_is_stored_for_a_product_serves_the_bias_too():
    ops, batch_by_batch = summed_gradients(simple_body(lambda x: (x @ WEIGHTS[0] + BIAS).tanh()))
    assert sorted(op for op in ops if op.startswith("sum")) == ["sum_products", "sum_rows"]
    assert not batch_by_batch


def test_products_of_elements_are_added_up_batch_by_batch():
    """They are no outer products: one product over all rows would be of another shape."""
    body = simple_body(lambda x: (x * BIAS).tanh())
    ops, batch_by_batch = summed_gradients(body)
    assert ops == ["take_sum"]
    assert batch_by_batch == list(body.shared_grads)
