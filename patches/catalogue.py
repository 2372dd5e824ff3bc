"""List the patches and the faults that they fix: a row a patch, as ``ast.literal_eval`` reads it.

The order of the rows is the order of the layers where two patches wrap one function: the first is
the outermost. ``wrapped.py`` lists the functions. A row has these entries:

- ``summary``: what stock optax does wrong, in a sentence of Markdown, for the page of the patch.
- ``opt_in``: the patch is only applied if the user names it.
- ``allow_missing_targets``: the patch is applied on an untested release that lacks some of its
  functions. Not by default: half of a patch may be worse than none.
- ``known_parameters``: by function, the parameters that the replacement reads. On an untested
  release, a function with other parameters is left unpatched.
- ``faults``: by id, the affected releases among the tested ones, in PEP 440 specifiers, and the
  upstream issue if there is one. The faults are the table for tested releases, the probes for
  untested ones, the rows of ``doctor`` and the cases of the tests.
"""

from __future__ import annotations

from typing import Any

PATCHES: dict[str, dict[str, Any]] = {
    "multi_steps": {
        "summary": (
            "`MultiSteps` raises `TypeError` or changes dtypes if the inner optimizer changes a "
            "dtype; up to 0.2.7 its sums of bfloat16 gradients stop growing; 0.2.8 loses "
            "imaginary parts and float64 digits"
        ),
        "faults": {
            "inner_drift": ">=0.1.2 #1207",
            "adafactor": ">=0.1.3,<0.2.4 #377",
            "schedule_free": "==0.2.3 #1038",
            "mixed_precision": "<0.2.8 #1039",
            "half_precision_sum": "<0.2.8",
            "int64_schedule": ">=0.1.8",
            "callable_extra_argument": "==0.2.4 #1122",
            "required_extra_argument": ">=0.1.5,<0.1.8",
            "complex_accumulator": ">=0.2.8 #1567",
            "float64_accumulator": ">=0.2.8 #1567",
            "accumulator_dtype_none": ">=0.2.8 #1567",
            "strict_promotion": ">=0.1.2",
            "integer_leaf": "<0.2.8",
        },
    },
    "zero_nans": {
        "summary": (
            "`zero_nans` inside `MultiSteps`: after one NaN or infinite micro-batch, every update "
            "is zero"
        ),
        "faults": {
            "bool_mask": ">=0.1.8,<0.2.0 #828",
            "nan_forever": ">=0.1.8",
            "inf_leak": ">=0.1.8",
        },
    },
    "schedule_free": {
        "summary": "in bfloat16 the sum of weights stops growing, so the averaged params are wrong",
        "faults": {
            "promoted_updates": "==0.2.3 #1038",
            "narrow_statistics": ">=0.2.4",
            "integer_leaf": ">=0.2.4",
            "mixed_halves": ">=0.2.3",
            "array_learning_rate": ">=0.2.3",
            "stalled_sum": ">=0.2.4",
        },
    },
    "zoom_linesearch": {
        "summary": (
            "L-BFGS and line searches: `TypeError` or changing dtypes in bfloat16 and 64-bit "
            "mode; the step compiles twice"
        ),
        "faults": {
            "weak_types": ">=0.2.3 #1108",
            "weak_types_backtracking": ">=0.2.0 #1171",
            "float32_in_64_bit_mode": ">=0.2.3 #1210",
            "float64": ">=0.2.3,<0.2.5 #1210",
            "bfloat16": ">=0.2.3 #1108",
            "mixed_tree": ">=0.2.3 #1207",
            "mixed_precision": ">=0.2.3 #1207",
            "bfloat16_backtracking": ">=0.2.0 #1171",
            "stored_gradient": ">=0.2.0",
        },
    },
    "prodigy": {
        "summary": (
            "the distance estimate stalls in bfloat16 and is NaN after a zero gradient; float64 "
            "updates in 64-bit mode up to 0.2.3"
        ),
        "faults": {
            "float64": ">=0.1.8,<0.2.4 #1051",
            "float64_params": ">=0.1.8,<0.2.4 #1051",
            "promoted_updates": ">=0.1.8,<0.2.4 #1051",
            "mixed_tree": ">=0.1.8 #1207",
            "narrow_scalars": ">=0.2.4",
            "zero_gradient": ">=0.1.8",
        },
    },
    "fromage": {
        "summary": (
            "a schedule as learning rate raises `TypeError` before 0.2.6, and gives float32 "
            "updates for half-precision params from 0.2.6 on"
        ),
        "known_parameters": {"fromage": ("learning_rate", "min_norm")},
        "faults": {
            "schedule": "<0.2.6 #1323",
            "promoted_updates": ">=0.1.2 #1323",
            "frozen_decay": "==0.2.6 #1359",
        },
    },
    "learning_rate": {
        "summary": (
            "an array as learning rate or weight decay promotes the updates; `sm3` and "
            "`optimistic_adam` refuse schedules"
        ),
        "allow_missing_targets": True,
        "known_parameters": {"sm3": ("learning_rate", "momentum")},
        "faults": {
            "array": ">=0.1.2 #1405",
            "numpy_scalar": ">=0.1.2 #1405",
            "weight_decay": ">=0.1.2 #1405",
            "schedule_of_sm3": ">=0.1.2",
            "schedule_of_optimistic_adam": ">=0.2.4",
        },
    },
    "conditional": {
        "summary": (
            "`apply_if_finite` and other conditional wrappers: `TypeError` if the inner optimizer "
            "changes a dtype"
        ),
        "allow_missing_targets": True,
        "faults": {
            "apply_if_finite": ">=0.1.2 #1207",
            "maybe_update": "<0.2.5 #1207",
            "conditionally_transform": ">=0.2.3 #1207",
            "conditionally_mask": ">=0.2.3 #1207",
            "mixed_precision": ">=0.1.2 #1207",
            "periodic_update": ">=0.1.2",
        },
    },
    "float32_moments": {
        "summary": (
            "in half precision, moments, averages and sums are rounded in each step: in bfloat16, "
            "the sum of squares of adagrad stops growing"
        ),
        "opt_in": True,
        "allow_missing_targets": True,
        "faults": {
            "narrow_moments": ">=0.1.2 #1552",
            "stalled_moment": ">=0.1.2 #1552",
            "stalled_decay": ">=0.1.2 #1552",
            "stalled_factors": ">=0.2.4",
            "stalled_sum": ">=0.1.2",
            "stalled_ema": ">=0.1.2",
            "stalled_trace": ">=0.1.2",
            "stalled_accumulator": ">=0.1.2",
        },
    },
    "float16_eps": {
        "summary": (
            "in float16 `eps` and small squares are 0, large squares are infinite: NaN or frozen "
            "params in adam and twenty others"
        ),
        "allow_missing_targets": True,
        "faults": {
            "zero_gradient": ">=0.1.2 #1754",
            "rmsprop": ">=0.1.2 #1784",
            "novograd": ">=0.1.4 #1789",
            "adafactor": ">=0.1.2",
            "contrib": ">=0.2.3",
            "tiny_gradient": ">=0.1.2",
            "lost_gradient": ">=0.1.2",
            "overflow": ">=0.1.2",
            "float16_arithmetic": ">=0.1.2 #1754",
        },
    },
    "bfloat16_moments": {
        "summary": (
            "moments in bfloat16 stall: updates of adam are 1.4 times too large with steady "
            "gradients, and far too small after large ones"
        ),
        "allow_missing_targets": True,
        "faults": {
            "stalled_moment": ">=0.1.2 #1552",
            "stalled_decay": ">=0.1.2 #1552",
            "stalled_factors": ">=0.2.4",
            "stalled_ema": ">=0.1.2",
            "stalled_sum": ">=0.1.2",
            "stalled_trace": ">=0.1.2",
            "requested_dtype": ">=0.1.2",
            "stalled_without_counter": ">=0.1.2",
        },
    },
    "promotion": {
        "summary": (
            "some 50 transformations promote integer leaves and mixed trees, or raise in strict "
            "promotion mode"
        ),
        "allow_missing_targets": True,
        "faults": {
            "integer_leaf": ">=0.1.2 #1207",
            "integer_chain": ">=0.1.4 #1207",
            "integer_gradients": ">=0.1.2",
            "wider_gradients": ">=0.1.2 #1207",
            "mixed_leaves": ">=0.1.2 #1207",
            "promoted_bfloat16": "<0.2.4 #1207",
            "default_momentum": ">=0.1.2",
            "strict_promotion": ">=0.1.2",
            "strict_schedule": ">=0.1.2",
            "float64_inside": "<0.2.4 #1207",
            "long_counter": ">=0.2.5,<0.2.7 #1207",
            "integer_nesterov": ">=0.1.9",
        },
    },
    "inject_hyperparams": {
        "summary": (
            "hyperparameters are rounded to the dtype of the params: in bfloat16 `b2=0.999` is 1, "
            "and adam gives NaN at once"
        ),
        "faults": {
            "not_a_number": ">=0.1.2 #1414",
            "narrow_hyperparams": ">=0.1.2 #1414",
            "integer_leaf": "<0.2.8",
            "hyperparam_dtype": ">=0.1.4 #1207",
            "strong_array": ">=0.2.8",
            "float64_schedule": ">=0.2.8",
            "numpy_scalar": ">=0.1.5",
            "wide_gradients": "<0.2.8",
            "mixed_tree": ">=0.1.2 #1207",
            "mixed_halves": ">=0.1.2",
            "complex_leaf": ">=0.1.2",
        },
    },
    "global_norm": {
        "summary": (
            "float16 norms above 255 are infinite, so clipped updates are 0 or NaN; bfloat16 "
            "norms of many leaves are too small; a norm of 0 gives NaN"
        ),
        "allow_missing_targets": True,
        "faults": {
            "many_leaves": ">=0.1.2",
            "overflow": ">=0.1.2",
            "underflow": ">=0.1.2",
            "tree_norms": ">=0.1.8",
            "safe_norms": ">=0.1.2",
            "unitwise_norm": ">=0.2.3",
            "clip_by_global_norm": ">=0.1.2",
            "clip_by_block_rms": ">=0.1.2",
            "adaptive_grad_clip": ">=0.1.2",
            "trust_ratio": ">=0.1.2",
            "normalize_by_update_norm": ">=0.2.3",
            "per_example": ">=0.1.3",
            "projections": ">=0.2.4",
            "mixed_tree": "<0.1.3",
            "mixed_updates": ">=0.2.3",
            "array_max_norm": ">=0.1.2",
            "zero_limit": ">=0.1.2",
            "normalize_zero": ">=0.1.8",
        },
    },
    "distance_estimates": {
        "summary": (
            "`dadapt_adamw`, `dog`, `dowg`, `momo`, `momo_adam`, `mechanize`: scalar sums stall "
            "in bfloat16 and are NaN in float16"
        ),
        "allow_missing_targets": True,
        "faults": {
            "weak_types": "==0.2.3",
            "promoted_updates": ">=0.1.7,<0.2.5 #1051",
            "float64": ">=0.1.7,<0.2.4 #1051",
            "float64_params": ">=0.1.7,<0.2.4 #1051",
            "mixed_tree": ">=0.1.7 #1207",
            "mixed_halves": ">=0.1.7",
            "array_learning_rate": ">=0.1.8",
            "narrow_scalars": ">=0.2.4",
            "integer_leaf": ">=0.2.4",
            "stalled_sum": ">=0.2.3",
            "float16": ">=0.2.4",
            "zero_gradient": ">=0.1.8",
            "python_value": ">=0.2.5,<0.2.7 #1500",
        },
    },
    "reduce_on_plateau": {
        "summary": "in bfloat16 a slowly falling loss counts as a plateau",
        "faults": {
            "weak_types": ">=0.2.4,<0.2.7 #1440",
            "promoted_updates": ">=0.1.8,<0.2.4",
            "mixed_halves": ">=0.1.8",
            "float64": ">=0.2.4,<0.2.7 #1440",
            "float64_loss": ">=0.1.8,<0.2.7,!=0.2.3 #976",
            "array_min_scale": ">=0.2.3 #1774",
            "narrow_scalars": ">=0.2.4",
            "integer_leaf": ">=0.2.4",
            "complex_leaf": ">=0.2.7",
            "no_plateau": ">=0.2.7",
            "running_mean": ">=0.2.7",
        },
    },
    "sums": {
        "summary": (
            "sums of half-precision numbers stop growing or overflow in `tree.sum`, `tree.vdot`, "
            "`microbatch`, `skip_large_updates`, projections and `cosine_similarity`"
        ),
        "allow_missing_targets": True,
        "faults": {
            "tree_sum": ">=0.1.8",
            "skip_large_updates": ">=0.1.3",
            "microbatch": ">=0.2.7",
            "projection": ">=0.2.3",
            "cosine_similarity": ">=0.1.2",
            "hessian_diag": ">=0.1.2",
        },
    },
    "stochastic_rounding": {
        "summary": (
            "bfloat16 params do not move with a small rate: `apply_updates` and "
            "`incremental_update` round to nearest, which loses what is below half a unit"
        ),
        "faults": {
            "small_updates": ">=0.1.2 #1444",
            "slow_average": ">=0.1.2",
        },
    },
}

REMOVED: dict[str, str] = {
    "every_transform": (
        "does nothing since 2.0. Transformations of optax keep their dtypes by default. For your "
        "own, call optax_dtypefix.preserve_dtypes(tx), and remove this id."
    ),
    "float32_averages": (
        "does nothing since 2.0. float32_moments keeps averages and sums in float32 too: name that "
        "patch instead."
    ),
}
"""What to say of the ids of older versions, which are accepted wherever ids are."""

ABOUT: dict[str, str] = {
    "prodigy": """\
prodigy: averages in stock's dtypes, scalars in float32 or wider, never float64 by accident.

Prodigy (Mishchenko and Defazio 2023, https://arxiv.org/abs/2306.06101) estimates the distance to
the solution. Up to 0.2.3, in 64-bit mode, ``beta ** count`` of a Python float and an int32 array is
float64, and state and updates follow. From 0.2.4 on a distance d in bfloat16 does not move by less
than d/256. And d is a quotient whose divisor, the sum of all gradients, is 0 as long as the
gradients are: 0/0 is nan, in every dtype and on every release. Stock runs as
``distance_estimates`` says.
""",
    "float16_eps": """\
float16_eps: moments of float16 gradients are computed in float32 and stay finite.

An update like m / (sqrt(v) + eps) needs eps > 0 and the squares of small gradients. The smallest
number of float16 is 6e-8 and the largest is 65504. So eps = 1e-8 is 0, the square of a gradient of
1e-4 is 0, and the square of 256 is inf. Then 0/0 is nan, g/0 is inf, and g/inf freezes a parameter
for good.

Here stock runs on float32 copies of the float16 leaves, and its state is rounded back as
``bfloat16_moments`` says; first moments to nearest below 6e-5. A positive moment that divides is at
least 6e-8: an update for a tiny gradient may be too small. A moment above 65504, from gradients
that stay above 256, is kept at 65504: an update is then too large by up to |g| / 256.
``float32_moments`` avoids both.
""",
    "bfloat16_moments": """\
bfloat16_moments: moments in bfloat16 are rounded up and down, so that none stalls.

v += (1 - b2) (g^2 - v) does not move v by less than half a unit in its last place. bfloat16 has 8
bits. So with b2 = 0.999, v stalls as soon as g^2 / v is below 1 + 2^-9 / 0.001, about 3. For unit
gradients v stalls at 0.5, and updates are 1.4 times too large. v never falls: 0.999 v rounds to v.
So after large gradients, updates for small ones stay too small.

Here stock runs on float32 copies of the bfloat16 leaves, and its state is rounded back: up in some
steps and down in others, so that the mean over steps is right. The step counter in the state
decides, so each run gives the same bits. rmsprop, adagrad, sm3, adadelta, cocob and ``trace``, the
momentum of SGD, have no counter: there another counter of the chain decides, such as that of a
schedule, or else the element's own data. A moment whose dtype you ask for (``mu_dtype``,
``accumulator_dtype``) is rounded in the same way, for float32 params too.
""",
}
"""By patch without a file of its own: what the docstring of a file says of the other patches."""
