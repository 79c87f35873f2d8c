"""Sample: views by name."""

VIEW_FUNCTIONS = {
    "alias": "self",
    "values": "self",
}

RETURNS_VIEWS_OF_INPUT = set(VIEW_FUNCTIONS.keys()).union({"chunk", "reshape"})
