"""Loads and stores at plain addresses, for kernels that write text of unknown length into one buffer.

Numba's arrays check for negative indexes at every access and cannot be cast; the encoder reads Arrow buffers of
a dozen element types and copies eight bytes at a time. Whoever calls these owns the memory and its bounds.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _loader(kind: Any, result: Any) -> Any:
    """`load(address)`: a `kind` at any alignment, widened to `result` so that arithmetic stays in one type."""

    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            memory = context.get_value_type(kind)
            value = builder.load(builder.inttoptr(arguments[0], memory.as_pointer()), typ=memory)
            value.align = 1
            return context.cast(builder, value, kind, result)

        return result(types.int64), codegen

    return load


def _storer(kind: Any) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            memory = context.get_value_type(kind)
            narrow = context.cast(builder, arguments[1], signature.args[1], kind)
            builder.store(narrow, builder.inttoptr(arguments[0], memory.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value), codegen

    return store


load_i8 = _loader(types.int8, types.int64)
load_i16 = _loader(types.int16, types.int64)
load_i32 = _loader(types.int32, types.int64)
load_i64 = _loader(types.int64, types.int64)
load_byte = _loader(types.uint8, types.int64)
load_u8 = _loader(types.uint8, types.uint64)
load_u16 = _loader(types.uint16, types.uint64)
load_u32 = _loader(types.uint32, types.uint64)
load_u64 = _loader(types.uint64, types.uint64)
store_u8 = _storer(types.uint8)
store_u16 = _storer(types.uint16)
store_u32 = _storer(types.uint32)
store_u64 = _storer(types.uint64)


@intrinsic
def multiply_high(typing_context: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of a 64 by 64 bit product; Numba has no wider integer."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


def _zero_counter(name: str) -> Any:
    @intrinsic
    def count(typing_context: Any, word: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, name)(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.uint64(types.uint64), codegen

    return count


trailing_zeros, leading_zeros = _zero_counter("cttz"), _zero_counter("ctlz")
"""Bits that are zero at the low end, and at the high end; 64 for 0."""
