"""Inputs of the zoo's operators for `torchfork citizenship`: a function for each operator.

make(*shape) gives a tensor; each call of the operator is yielded as its arguments, those by keyword
in a dict at the end. README.md of the project says more.
"""


def zoo_softclip(make):
    yield make(3, 4), 2
    yield make(2, 1, 3, 5), 1.5
    yield (make(0),)


def zoo_blend(make):
    yield make(3, 1), make(4), {"alpha": 3}
    yield make(2, 3, 4, 5), make(2, 3, 4, 5)


def zoo_window_sum(make):
    yield make(2, 5, 3), 2, 1
    yield make(4), 4


def zoo_muladd(make):
    yield make(3, 1), make(4), make(3, 4)


def zoo_cpu_only(make):
    yield (make(3, 4),)


def zoo_center(make):
    yield make(3, 4), 0


def zoo_scale_shift(make):
    yield make(3, 4), make(4), make(4)
    yield make(3, 4), None, make(4)


def zoo_with_last(make):
    yield make(3, 4), make(4)


def zoo_skip(make):
    yield make(3, 5), 2


def zoo_skip_copy(make):
    yield make(3, 5), 2


def zoo_skip_backward(make):
    yield make(3, 3), [3, 5], 2


def zoo_halves(make):
    yield (make(5, 2),)


def zoo_halves_copy(make):
    yield make(2, 5), 1


def zoo_columns(make):
    yield (make(2, 3),)


def zoo_ramp(make):
    yield [2, 3], {"step": 2}


def zoo_ramp_like(make):
    yield make(2, 3), {"step": 2}


def zoo_dither(make):
    yield make(3, 4), 0.25


def zoo_coin(make):
    yield [2, 3], 0.5


def zoo_stack_mean(make):
    yield ([make(3), make(3), make(3)],)


def zoo_powers(make):
    yield make(3), 3


def zoo_neighbour_sums(make):
    yield ([make(3), make(3), make(3)],)


def zoo_add_present(make):
    yield make(3), [make(3), make(3)]


def zoo_sum_diff(make):
    yield make(3, 1), make(4)


def zoo_moments(make):
    yield make(3, 4), 0


def zoo_peak(make):
    yield make(3, 4), 1


def zoo_gram(make):
    yield make(3, 2), make(4, 2)


def zoo_gram_backward(make):
    yield make(3, 4), make(3, 2), make(4, 2), [True, True]


def zoo_pool(make):
    yield make(3, 4), {"mode": "norm"}
    yield (make(3, 4),)


def zoo_tile(make):
    yield make(2, 3), 2


def zoo_shift(make):
    yield make(2, 3), 1


def zoo_total(make):
    yield (make(2, 3),)


def zoo_adjust(make):
    yield make(2, 3), [2, 0.5], [0.25, 1.0], {"repeat": 2, "floor": -100.0, "negate": True}


def zoo_count_above(make):
    yield make(2, 3), 0.5


def zoo_is_sorted(make):
    yield (make(6),)


def zoo_spread(make):
    yield (make(6),)


def zoo_first(make):
    yield (make(6),)


def zoo_common_type(make):
    yield ([make(3), make(3)],)


def zoo_require_rank(make):
    yield make(2, 3), 2


def zoo_nonnegative(make):
    yield (make(2, 3),)


def zoo_shout(make):
    yield (make(3),)


def zoo_nn_gate(make):
    yield (make(3, 4),)


def zoo_nn_scaled(make):
    yield make(3), 5


def zoo_special_cube(make):
    yield (make(3),)


def zoo_linalg_trace(make):
    yield (make(2, 3, 3),)


def zoo_fft_energy(make):
    yield (make(2, 4),)


def hypot_zoo(make):
    yield make(3), make(3), {"scale": 3}


def aminmax_zoo(make):
    yield make(3), make(3)


def zoo_phase(make):
    yield (make(3),)


def zoo_abs2(make):
    yield (make(3),)


def zoo_fill_ramp_(make):
    yield make(2, 3), 2


def zoo_running_mean(make):
    yield make(4, 3), make(3)
