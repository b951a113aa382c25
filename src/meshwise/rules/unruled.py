"""Primitives that JAX may stage and that have no rule, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwise.graph.loops import NO_RULE, LoopRule

_EFFECT = "a side effect: refused"
_CALLED = "a function of the host, called once: `host_call` takes its place"
_COLLECTIVE = "over an axis of the user's own `shard_map` or `vmap`, which is a dim when planned"
_APART = "becomes an operation on whole arrays, see `meshwise.trace.own_parallel`"
_REFERENCE = "reads or writes a reference: refused outside of a kernel"
_KERNEL = "an opaque kernel: state its loops, by mw.sharded_kernel or rules="
_INSIDE = "only inside other primitives, or while they are differentiated"

_NAMES = {
    _EFFECT: """
        after_all create_token inspect_sharding dce_sink infeed outfeed check
    """,
    _CALLED: "debug_callback debug_print io_callback",
    _COLLECTIVE: """
        all_gather all_gather_invariant all_gather_reduced all_to_all axis_index pbroadcast pmax
        pmin ppermute preduced psum psum_invariant psum2 pvary ragged_all_to_all reduce_scatter
        unreduced_psum unreduced_reduce_scatter precv psend reduced_vary_cast_p
        vary_unreduced_cast_p
    """,
    _REFERENCE: """
        addupdate get swap new_ref empty_ref free_ref freeze accum_grad_in_ref run_state pin unpin
        broadcast_to
    """,
    _KERNEL: """
        call_exported cudnn_fusion custom_partitioning dot_product_attention_fp8_bwd_wrapper
        dot_product_attention_fp8_fwd_wrapper ffi_call scaled_dot scaled_matmul_wrapper
        core_map
    """,
    _APART: "shard_map",
    _INSIDE: """
        custom_lin custom_jvp_call_jaxpr create_linear from_edtype geqp3
        iota_2x32_shape philox2x32 philox4x32 stage threefry4x32 tie to_edtype unreachable
        zeros_like
    """,
    "windows with a function of the user's own": "reduce_window select_and_scatter",
    "about shapes that are not known: a step has known ones": """
        dim_as_value dimension_size shape_assertion
    """,
    "for meshes of the user's own": "with_memory_space_constraint",
}

WHY_UNRULED: Mapping[str, str] = MappingProxyType(
    {name: why for why, names in _NAMES.items() for name in names.split()}
)


def hint(name: str, rule: LoopRule) -> str:
    """Return what to do about a primitive without a rule, as the end of a message.

    Args:
        name: The name of the primitive.
        rule: What its equation says in place of loops.

    Returns:
        The text, empty where there is nothing to do.
    """
    if rule.whole != NO_RULE:
        return f" ({rule.whole})"
    why = WHY_UNRULED.get(name, _KERNEL)
    return f" ({why})" if why in (_KERNEL, _COLLECTIVE) else ""
