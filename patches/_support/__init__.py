"""Share code between patches, above all the ways to run stock in other dtypes.

=====================================  ==============  ===============  ==========  =============
way                                    stock is given  in which dtypes  mode        state after
=====================================  ==============  ===============  ==========  =============
``KeepDtypes``, by ``Layer``           trees           the user's (1)   32-bit (2)  cast back
``InFloat32``, by ``Layer``            trees           16 bits widened  the user's  rounded
``distance_estimates``, ``prodigy``    lists of reals  one, >= 32 bits  32-bit      cast back (3)
line searches                          lists of reals  one, >= 32 bits  the user's  cast back (3)
``schedule_free``                      trees           16 bits widened  the user's  cast back (3)
``inject_hyperparams``                 one number      hyperparameters  the user's  stock's
``functions.in_float32``               trees           16 bits widened  the user's  none
=====================================  ==============  ===============  ==========  =============

(1) One dtype for all, if stock needs that. (2) If stock computes in float64 in 64-bit mode. (3)
Scalars are float32 or wider. "Rounded" is by ``round_moments``, which ``cast_back`` calls as well.

Lists, where stock builds trees of its own, or where a complex leaf becomes a pair: a user-defined
node need not accept either. Trees, where stock's state has fields of unknown structure. In all of
them updates are bounded by gradients, params and what the user asked for (``cast_updates``), and
results of functions by stock's dtypes.
"""
