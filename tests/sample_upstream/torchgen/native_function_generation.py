"""Sample: operators that torchgen makes no out= variant for."""

FUNCTIONAL_OPS_THAT_CANNOT_GET_AN_OUT_VARIANT = [
    "equal",  # returns a boolean
]
