"""Sample: operators with complex gradients."""

GRADIENT_IMPLEMENTED_FOR_COMPLEX = {
    "sinc",
    "where",
}
