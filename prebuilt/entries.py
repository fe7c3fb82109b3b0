"""Entry points as object code: a kernel of one signature that takes its arguments from a row of 64-bit words.

numba compiles the kernel as it does at first use, with the same passes. Only the way in is another: not a function of
Python's interface, but one of C, `int32 entry(const int64 *arguments, int64 *results)`.
"""

from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.cpu import CPUContext

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_WORDS = _INT64.as_pointer()
_NUMBAS = CPUContext.create_cfunc_wrapper


class Library(JITCodeLibrary):
    """A library that ends as object code instead of in memory."""

    name_of_entry = ""
    code = b""

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: an environment is for calls of Python."""

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.name != Library.name_of_entry:
                function.linkage = "internal"
        super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        for value in self._final_module.global_variables:
            if value.name.startswith("_ZN08NumbaEnv"):
                value.linkage = "internal"
        Library.code = _machine().emit_object(self._final_module)
        self._finalized = True


class _Compiler(Compiler):
    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, library or Library(target.codegen(), "entry"), *rest)


def _machine() -> Any:
    """Return LLVM's machine for code that can be anywhere in memory."""
    config: Any = numba.config
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=config.CPU_NAME, features=config.CPU_FEATURES, opt=3, reloc="pic", codemodel="default"
    )


def _wrap(context: Any, library: Any, fndesc: Any, env: Any, call_helper: Any) -> None:
    """Emit the way in, in place of numba's own for C, which functions of numba keep."""
    if not isinstance(library, Library):
        _NUMBAS(context, library, fndesc, env, call_helper)
        return
    module = context.create_module("entry")
    inner = ir.Function(
        module, context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes), fndesc.llvm_func_name
    )
    function = ir.Function(module, ir.FunctionType(_INT32, [_WORDS, _WORDS]), Library.name_of_entry)
    builder = ir.IRBuilder(function.append_basic_block())
    packer = context.get_arg_packer(fndesc.argtypes)
    loaded = [
        _from_word(builder, builder.load(builder.gep(function.args[0], [_INT64(i)])), kind)
        for i, kind in enumerate(packer.argument_types)
    ]
    arguments = packer.from_arguments(builder, loaded)
    status, out = context.call_conv.call_function(builder, inner, fndesc.restype, fndesc.argtypes, arguments)
    with builder.if_then(status.is_error, likely=False):
        builder.ret(_INT32(1))
    for i, word in enumerate(_words(context, builder, fndesc.restype, out)):
        builder.store(word, builder.gep(function.args[1], [_INT64(i)]))
    builder.ret(_INT32(0))
    library.add_ir_module(module)


def _from_word(builder: Any, word: Any, kind: Any) -> Any:
    if isinstance(kind, ir.PointerType):
        return builder.inttoptr(word, kind)
    if isinstance(kind, ir.DoubleType):
        return builder.bitcast(word, kind)
    if isinstance(kind, ir.FloatType):
        return builder.bitcast(builder.trunc(word, _INT32), kind)
    return word if kind.width == 64 else builder.trunc(word, kind)


def _words(context: Any, builder: Any, kind: Any, value: Any) -> list[Any]:
    if isinstance(kind, types.NoneType):
        return []
    if isinstance(kind, types.BaseTuple):
        return [
            word
            for i, item in enumerate(kind)
            for word in _words(context, builder, item, builder.extract_value(value, i))
        ]
    if isinstance(kind, types.Float):
        wide = value if kind.bitwidth == 64 else builder.fpext(value, ir.DoubleType())
        return [builder.bitcast(wide, _INT64)]
    if isinstance(kind, types.Boolean):
        return [builder.zext(value, _INT64)]
    if value.type.width == 64:
        return [value]
    return [builder.sext(value, _INT64) if kind.signed else builder.zext(value, _INT64)]


def compile_entry(kernel: Any, signature: Any, name: str) -> tuple[bytes, Any]:
    """Return the object code of a kernel for one signature, and the type of its result.

    Args:
        kernel: numba's dispatcher.
        signature: types of the arguments.
        name: of the entry point in the object.
    """
    CPUContext.create_cfunc_wrapper = _wrap
    options = {**kernel.targetoptions, "no_cpython_wrapper": True, "no_cfunc_wrapper": False}
    options.pop("nopython", None)
    Library.name_of_entry, Library.code = name, b""
    compiled = numba.njit(pipeline_class=_Compiler, **options)(kernel.py_func)
    compiled.compile(signature)
    (overload,) = compiled.overloads.values()
    return Library.code, overload.signature.return_type
