"""Sample: functions that go into a graph."""


class TorchInGraphFunctionVariable:
    """What Dynamo wraps such a function in."""


torch_c_binding_in_graph_functions = dict.fromkeys(
    [
        "torch._C._nn.gelu",
        "torch.sinc",
    ],
    TorchInGraphFunctionVariable,
)

torch_name_rule_map = [
    torch_c_binding_in_graph_functions,
]
