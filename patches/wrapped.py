"""List the functions that the patches wrap: a row a function, as ``ast.literal_eval`` reads it.

A row names the function, the releases that have it unless all do, and its layers, the outermost
first. The innermost one calls stock. The same order holds in each row: that of ``catalogue.py``.

A layer is written ``patch:name releases``. That is the function ``name`` of ``patch.py`` in this
folder, on these releases only, in PEP 440 specifiers. ``patch`` alone stands for ``patch:replace``.
So ``schedule_free_eval_params`` before 0.2.4 calls ``schedule_free.eval_params_like_params``, which
calls stock. ``door`` stands for each patch in ``BUILDERS``: it is called once for all of them.

A function of another package is wrapped when a program imports that package. Until then its patch
is applied without it.

The file of a patch is imported when one of its layers is called for the first time.
"""

from __future__ import annotations

# fmt: off
MODULES: dict[str, tuple[str, ...]] = {
    "accumulation": (
        "optax.transforms._accumulation", "optax._src.wrappers", "optax._src.transform",
    ),
    "alias": ("optax._src.alias",),
    "base": ("optax._src.base",),
    "clipping": ("optax.transforms._clipping", "optax._src.clipping"),
    "contrib": ("optax.contrib._", "optax.contrib.", "optax._src.contrib.", "optax._src."),
    "equinox": ("equinox._update",),
    "factorized": ("optax._src.factorized",),
    "jaxopt": ("jaxopt._src.optax_wrapper",),
    "linear_algebra": ("optax._src.linear_algebra",),
    "linesearch": ("optax._src.linesearch", "optax._src.utils"),
    "losses": ("optax.losses._regression", "optax._src.loss"),
    "microbatching": ("optax.microbatching._microbatching",),
    "monitoring": ("optax.transforms._monitoring",),
    "numerics": ("optax._src.numerics",),
    "projections": ("optax.projections._projections",),
    "schedules": (
        "optax.schedules._schedule", "optax.schedules._join", "optax.schedules._inject",
        "optax.schedules._stateful", "optax._src.schedule",
    ),
    "second_order": (
        "optax.second_order._deprecated", "optax.second_order._hessian", "optax._src.second_order",
    ),
    "tree_math": ("optax.tree_utils._tree_math",),
    "tree_utils": ("optax.tree_utils",),
    "update": ("optax._src.update",),
}
"""Where functions are defined, newest layout of optax first: the first module that has one counts.

``contrib.dog`` in the table below is each module of ``contrib`` with ``dog`` at its end.
"""

WRAPPED: dict[str, dict[str, tuple[str, ...]]] = {
    "accumulation": {
        "MultiSteps.init": ("multi_steps:init",),
        "MultiSteps.update": (
            "multi_steps:update <0.1.5",
            "multi_steps:update_with_arguments >=0.1.5,<0.1.8",
            "multi_steps:update >=0.1.8,<0.2.8,!=0.2.4",
            "multi_steps:update_with_arguments ==0.2.4",
            "multi_steps:update_accumulator >=0.2.8",
            "zero_nans:update_selecting_state >=0.1.8,<0.2.0",
            "zero_nans:update >=0.2.0",
        ),
        "skip_large_updates >=0.1.3": ("sums:skip_large_updates",),
    },
    "alias": {
        "adafactor": ("promotion:adafactor",),
        "fromage": ("fromage:with_parts <0.2.7", "fromage:with_stock >=0.2.7"),
        "lbfgs >=0.2.3": ("zoom_linesearch:lbfgs",),
        "optimistic_adam >=0.2.4": ("learning_rate:optimistic_adam",),
        "sm3": ("learning_rate:sm3",),
    },
    "base": {
        "GradientTransformation.__new__": ("door",),
    },
    "clipping": {
        "per_example_global_norm_clip >=0.1.3": (
            "global_norm:per_example <0.2.4",
            "global_norm:trees_in_float32 >=0.2.4",
        ),
        "per_example_layer_norm_clip >=0.1.8": (
            "global_norm:per_example <0.2.4",
            "global_norm:trees_in_float32 >=0.2.4",
        ),
        "unitwise_norm >=0.2.3": ("global_norm:in_float32",),
    },
    "contrib.mechanic": {"_tree_norm ==0.1.7": ("distance_estimates:tree_norm",)},
    "contrib.schedule_free": {
        "schedule_free": ("schedule_free",),
        "schedule_free_adamw <0.2.4": ("schedule_free:pass_no_dtype",),
        "schedule_free_eval_params": (
            "schedule_free:eval_params_like_params <0.2.4",
            "schedule_free:eval_params >=0.2.4",
        ),
        "schedule_free_sgd <0.2.4": ("schedule_free:pass_no_dtype",),
    },
    "contrib.sophia": {
        "scale_by_sophia >=0.2.5": ("promotion:sophia",),
    },
    "equinox": {"apply_updates": ("stochastic_rounding:apply_to_model",)},
    "jaxopt": {"OptaxSolver._apply_updates": ("stochastic_rounding:apply_in_solver",)},
    "linear_algebra": {"global_norm <0.2.7": ("global_norm:in_float32",)},
    "linesearch": {
        "value_and_grad_from_state >=0.2.0": ("zoom_linesearch:value_and_grad_from_state",),
        "zoom_linesearch >=0.2.3": (
            "zoom_linesearch:zoom_strict <0.2.5",
            "zoom_linesearch:zoom_wide >=0.2.5",
        ),
    },
    "losses": {"cosine_similarity": ("sums:in_float32",)},
    "microbatching": {
        "_mean >=0.2.7": ("sums:accumulator",),
        "_running_mean >=0.2.7": ("sums:accumulator",),
        "_sum >=0.2.7": ("sums:accumulator",),
    },
    "monitoring": {"measure_with_ema >=0.2.7": ("promotion:alias",)},
    "numerics": {
        "safe_norm": ("global_norm:in_float32",),
        "safe_root_mean_squares": ("global_norm:in_float32",),
    },
    "tree_utils": {"__getattr__ >=0.2.5": ("global_norm:deprecated_name",)},
    "projections": {
        "projection_halfspace >=0.2.6": ("sums:trees_in_float32",),
        "projection_hyperplane >=0.2.6": ("sums:trees_in_float32",),
        "projection_l1_ball >=0.2.4": ("global_norm:trees_in_float32",),
        "projection_l1_sphere >=0.2.4": ("sums:trees_in_float32",),
        "projection_l2_ball >=0.2.4": ("global_norm:trees_in_float32",),
        "projection_l2_sphere >=0.2.4": ("global_norm:trees_in_float32",),
        "projection_simplex >=0.2.3": ("sums:trees_in_float32",),
        "projection_vector >=0.2.6": ("sums:trees_in_float32",),
    },
    "schedules": {
        "cosine_decay_schedule": ("promotion:schedule",),
        "exponential_decay": ("promotion:schedule",),
        "inject_hyperparams": ("inject_hyperparams",),
        "inject_stateful_hyperparams ==0.1.8": ("inject_hyperparams",),
        "join_schedules": ("promotion:schedule",),
        "piecewise_constant_schedule": ("promotion:schedule",),
        "piecewise_interpolate_schedule": ("promotion:schedule",),
        "polynomial_schedule": ("promotion:schedule",),
    },
    "second_order": {"hessian_diag": ("sums:hessian_diag",)},
    "tree_math": {
        "tree_l1_norm >=0.2.3,<0.2.5": ("global_norm:in_float32",),
        "tree_l2_norm >=0.1.8,<0.2.5": ("global_norm:in_float32",),
        "tree_norm >=0.2.5": ("global_norm:in_float32",),
        "tree_sum >=0.1.8": ("sums:in_float32",),
        "tree_vdot >=0.1.8": ("sums:in_float32",),
    },
    "update": {
        "apply_updates": ("stochastic_rounding:apply_updates",),
        "incremental_update": ("stochastic_rounding:incremental_update",),
        "periodic_update": ("conditional:periodic_update",),
    },
}

BUILDERS: dict[str, tuple[str, ...]] = {
    "adaptive_grad_clip": ("promotion", "global_norm:scale_by_params"),
    "add_decayed_weights": ("learning_rate",),
    "add_noise": ("promotion !=0.2.3", "promotion:in_32_bits ==0.2.3"),
    "apply_every": (
        "float32_moments", "float16_eps", "bfloat16_moments", "promotion:keeping_integers",
    ),
    "apply_if_finite": ("conditional",),
    "centralize": ("promotion:keeping_integers",),
    "chain": ("promotion:chain",),
    "clip": ("promotion:keeping_integers",),
    "clip_by_block_rms": ("promotion", "global_norm:clip_by_block_rms"),
    "clip_by_global_norm": ("promotion", "global_norm:clip_by_global_norm"),
    "cocob": ("promotion:one_dtype_in_32_bits <0.2.3",),
    "conditionally_mask": ("conditional",),
    "conditionally_transform": ("conditional",),
    "dadapt_adamw": ("distance_estimates",),
    "differentially_private_aggregate": ("promotion",),
    "ema": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "flatten": ("promotion:around_another",),
    "hutchinson_estimator_diag_hessian": ("promotion:one_dtype",),
    "lookahead": ("promotion:around_another",),
    "masked": ("promotion:combine",),
    "maybe_update": ("conditional",),
    "mechanize": ("distance_estimates:mechanize",),
    "momo": ("distance_estimates",),
    "momo_adam": ("distance_estimates",),
    "multi_transform": ("promotion:combine <0.2.3",),
    "named_chain": ("promotion:chain",),
    "normalize": ("promotion", "global_norm:normalize"),
    "normalize_by_update_norm": ("promotion", "global_norm:normalize_by_update_norm"),
    "partition": ("promotion:combine",),
    "prodigy": ("prodigy",),
    "reduce_on_plateau": ("reduce_on_plateau",),
    "sam": ("promotion:around_another",),
    "scale": ("learning_rate",),
    "scale_by_acprop": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_adadelta": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_adam": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_adamax": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion >=0.1.4"),
    "scale_by_adan": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_ademamix": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_adopt": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_amsgrad": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_backtracking_linesearch": (
        "zoom_linesearch:strict <0.2.5", "zoom_linesearch:wide >=0.2.5",
    ),
    "scale_by_belief": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_cocob": (
        "float32_moments", "float16_eps", "bfloat16_moments",
        "promotion:one_dtype_in_32_bits ==0.2.3", "promotion >=0.2.4",
    ),
    "scale_by_distance_over_gradients": ("promotion:one_dtype_in_32_bits",),
    "scale_by_dog": ("distance_estimates",),
    "scale_by_dowg": ("distance_estimates",),
    "scale_by_factored_rms": (
        "float32_moments", "float16_eps", "bfloat16_moments",
        "promotion:one_dtype_in_32_bits <0.2.4", "promotion >=0.2.4",
    ),
    "scale_by_galore": ("promotion:like_grads",),
    "scale_by_lbfgs": ("zoom_linesearch:scale_by_lbfgs",),
    "scale_by_lion": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_madgrad": (
        "learning_rate", "float32_moments", "float16_eps", "bfloat16_moments", "promotion",
    ),
    "scale_by_muon": (
        "float32_moments", "float16_eps", "bfloat16_moments", "promotion:in_32_bits",
    ),
    "scale_by_novograd": (
        "float32_moments", "float16_eps", "bfloat16_moments",
        "promotion:one_dtype_in_32_bits <0.2.4", "promotion:one_dtype >=0.2.4",
    ),
    "scale_by_optimistic_gradient": ("learning_rate:no_integers", "promotion"),
    "scale_by_param_block_norm": ("promotion",),
    "scale_by_param_block_rms": ("promotion",),
    "scale_by_polyak": ("promotion",),
    "scale_by_radam": (
        "float32_moments", "float16_eps", "bfloat16_moments",
        "promotion:one_dtype_in_32_bits <0.2.4", "promotion >=0.2.4",
    ),
    "scale_by_rms": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_rprop": ("promotion:in_32_bits",),
    "scale_by_rss": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_schedule": ("promotion",),
    "scale_by_shape": ("promotion",),
    "scale_by_simplified_ademamix": (
        "float32_moments", "float16_eps", "bfloat16_moments",
        "promotion:count_in_int32 <0.2.7", "promotion >=0.2.7",
    ),
    "scale_by_sm3": (
        "float32_moments", "float16_eps", "bfloat16_moments",
        "promotion:one_dtype_in_32_bits <0.2.4", "promotion >=0.2.4",
    ),
    "scale_by_sophia": (
        "float32_moments", "float16_eps", "bfloat16_moments", "promotion",
    ),
    "scale_by_stddev": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "scale_by_trust_ratio": ("promotion", "global_norm:scale_by_params"),
    "split_real_and_imaginary": ("promotion:around_another",),
    "scale_by_zoom_linesearch": (
        "zoom_linesearch:strict <0.2.5", "zoom_linesearch:wide >=0.2.5",
    ),
    "scale_by_yogi": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
    "trace": ("float32_moments", "float16_eps", "bfloat16_moments", "promotion"),
}
"""The functions of optax whose transformations ``door/`` lifts, and what each patch asks for.

So on 0.2.3, what ``scale_by_radam`` builds runs in float32 for ``float16_eps`` and
``bfloat16_moments``, and keeps its dtypes by ``promotion:one_dtype_in_32_bits``: ``LIFTS`` of
``door/lifts.py`` says so. A layer that is not there is a function, as above: it rebuilds the
transformation, and is alone in its row.
"""
