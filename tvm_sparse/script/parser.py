"""The parser of the dialect: ``@S.prim_func`` and the statements that differ from ``T``.

Statements go through TVM's own visitors; only function definitions (which build a
:class:`~tvm_sparse.ir.SparseFunc`) and assignments (which name axes and buffers) are ours.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.error import DiagnosticError
from tvm.ir import IRModule
from tvm.s_tir.stmt import SBlockRealize
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import ir as I
from tvm.script.parser._core import Parser, dispatch, doc, utils
from tvm.script.parser.core.diagnostics import Source
from tvm.script.parser.core.entry import _default_globals
from tvm.tirx.script import builder as T
from tvm.tirx.script import parser as tirx_names
from tvm.tirx.script.parser import *  # noqa: F403 (S holds everything that T holds)
from tvm.tirx.script.parser import parser as tirx_parser

from ..errors import SparseProgramError
from ..ir import SparseBuffer, SparseFunc, SparseIteration, verify
from . import builder
from .builder import *  # noqa: F403
from .builder import ITERATION_MARK, FunctionState

__all__ = [
    *(name for name in tirx_names.__all__ if hasattr(tirx_names, name)),
    *builder.__all__,
    "from_source",
]

_TOKEN = "sparse"


class SparseParser(Parser):
    """TVM's parser, with errors that quote the offending line."""

    def eval_expr(self, node: doc.AST, extra_vars: dict[str, Any] | None = None) -> Any:
        """Evaluate an expression whose sparse buffers have as many indices as axes."""
        if FunctionState.stack:
            _CheckIndices(self).visit(node)
        return super().eval_expr(node, extra_vars)

    def eval_assign(self, target: doc.AST, source: Any, *args: Any, **kwargs: Any) -> Any:
        """Bind names, of a sparse iteration as many as it has iterators."""
        scope = FunctionState.iteration_of(source)
        if scope is not None and isinstance(target, doc.List | doc.Tuple):
            axes = ", ".join(axis.name for axis in scope.axes)
            if len(target.elts) != len(scope.iter_vars):
                self.report_error(
                    target,
                    f"S.sp_iter {scope.name}: expected {len(scope.iter_vars)} names after `as`, one for "
                    f"each iterator of ({axes}), found {len(target.elts)}",
                )
        return super().eval_assign(target, source, *args, **kwargs)

    def report_error(self, node: doc.AST, err: Exception | str) -> None:
        """Raise a :class:`SparseProgramError` that names file, line and source text."""
        if isinstance(err, SparseProgramError) and getattr(err, "located", False):
            raise err
        if isinstance(err, DiagnosticError):
            raise err
        source = self.diag.source
        line = getattr(node, "lineno", 1) + source.start_line - 1
        cause = err if isinstance(err, Exception) else None
        error = SparseProgramError(f"{source.source_name}:{line}: {err}\n    {self.quote(node)}")
        error.located = True
        raise error from cause

    def quote(self, node: doc.AST) -> str:
        """Return the source line that a node begins in."""
        lines = self.diag.source.source.splitlines()
        return lines[getattr(node, "lineno", 1) - 1].strip() if lines else ""


class _CheckIndices(doc.NodeVisitor):
    """Refuses reads of and stores to sparse buffers with too few or too many indices."""

    def __init__(self, parser: SparseParser) -> None:
        self._parser = parser

    def visit_Subscript(self, node: doc.Subscript) -> None:
        """Check one subscript, and those in its indices."""
        self.check(node)
        self.generic_visit(node)

    def check(self, node: doc.Subscript) -> None:
        """Check one subscript."""
        buffer = self._buffer(node.value)
        indices = node.slice.elts if isinstance(node.slice, doc.Tuple) else [node.slice]
        if buffer is None or any(isinstance(index, doc.Starred) for index in indices):
            return
        if len(indices) != len(buffer.axes):
            axes = ", ".join(axis.name for axis in buffer.axes)
            self._parser.report_error(
                node,
                f"buffer {buffer.name}: expected one index for each of its axes ({axes}), "
                f"found {len(indices)}",
            )

    def _buffer(self, node: doc.AST) -> SparseBuffer | None:
        if not isinstance(node, doc.Name):
            return None
        named = self._parser.var_table.get().get(node.id)
        state = FunctionState.stack[-1]
        known = (*state.buffers, *state.temporaries)
        return next((each for each in known if each.buffer.same_as(named)), None)


def prim_func(
    func: Callable | None = None, private: bool = False, check_well_formed: bool = True, **_ignored
) -> SparseFunc | Callable:
    """Parse a Python function as a sparse program (stage I).

    Parameters
    ----------
    func : function
        The program; its body is parsed, never run.
    private : bool
        Whether the function gets no global symbol.
    check_well_formed : bool
        Whether to verify the program.

    Returns
    -------
    SparseFunc
        The program, or (inside ``@I.ir_module``) the Python function for the module parser.

    Raises
    ------
    SparseProgramError
        If the program has no meaning; the message quotes the source line.

    Examples
    --------
    >>> from tvm.script import sparse as S
    >>> @S.prim_func
    ... def scale(a: S.handle, b: S.handle, n: S.int32):
    ...     I = S.dense_fixed(n)
    ...     A = S.match_sparse_buffer(a, (I,), "float32")
    ...     B = S.match_sparse_buffer(b, (I,), "float32")
    ...     with S.sp_iter([I], "S", "scale") as [i]:
    ...         B[i] = A[i] * 2.5
    >>> [axis.name for axis in scale.axes]
    ['I']
    """
    outer_stack = inspect.stack()

    def decorate(func: Callable) -> SparseFunc | Callable:
        if not inspect.isfunction(func):
            raise TypeError(f"S.prim_func: expected a function, found {func!r}")
        if utils.is_defined_in_class(outer_stack, func):
            return func
        captured = utils.inspect_function_capture(func)
        utils.resolve_closure_vars(func, captured, outer_stack)
        module = _parse(Source(func), captured, {func.__name__: func.__annotations__})
        return _only_function(module)

    if func is not None:
        return decorate(func)
    decorate.dispatch_token = _TOKEN
    return decorate


prim_func.dispatch_token = _TOKEN


def from_source(source: str, extra_vars: dict[str, Any] | None = None) -> SparseFunc | IRModule:
    """Parse the text of a sparse program or of an ``IRModule`` that holds some.

    Parameters
    ----------
    source : str
        Text as printed by ``script()``; ``S``, ``T`` and ``I`` are bound.
    extra_vars : dict, optional
        Further names that the text may use.

    Returns
    -------
    SparseFunc or tvm.IRModule
        What the text defines.
    """
    names = {**_default_globals(), "S": inspect.getmodule(from_source), **(extra_vars or {})}
    from tvm.script import sparse  # noqa: PLC0415 (registered after this module is loaded)

    names["S"] = sparse
    program = Source(source)
    is_module = any(isinstance(node, doc.ClassDef) for node in program.as_ast().body)
    module = _parse(program, names, {})
    return module if is_module else _only_function(module)


def _parse(source: Source, names: dict[str, Any], annotations: dict) -> IRModule:
    parser = SparseParser(source, annotations)
    is_module = any(isinstance(node, doc.ClassDef) for node in source.as_ast().body)
    try:
        with IRBuilder() as ir_builder, contextlib.ExitStack() as frames:
            if not is_module:
                frames.enter_context(I.ir_module())
            parser.parse(extra_vars=names)
        module = ir_builder.get()
        if not is_module:
            _place_functions(parser, module)
    except SparseProgramError as err:
        raise err.with_traceback(None) from None  # the parser's own frames tell a user nothing
    return module


def _only_function(module: IRModule) -> SparseFunc:
    (func,) = module.functions.values()
    return func


def _visitor(type_name: str) -> Callable:
    """Register a visitor of this dialect and keep its name usable."""

    def register(function: Callable) -> Callable:
        dispatch.register(token=_TOKEN, type_name=type_name)(function)
        return function

    return register


# --- visitors ----------------------------------------------------------------------------------

for _name in (
    *("For", "While", "With", "AnnAssign", "AugAssign", "Expr", "If", "Assert", "Return"),
    *("Continue", "Break", "tvm_annotation", "enter_token", "exit_token"),
):
    _stock = dispatch.get(token="tirx", type_name=_name, default=None)
    if _stock is not None:
        dispatch.register(token=_TOKEN, type_name=_name)(_stock)


_visit_tirx_assign = dispatch.get(token="tirx", type_name="Assign")


@_visitor("Assign")
def _visit_assign(self: Parser, node: doc.Assign) -> None:
    state = FunctionState.stack[-1] if FunctionState.stack else None
    target = node.targets[0]
    named_call = isinstance(target, doc.Name) and isinstance(node.value, doc.Call)
    if state is not None and len(node.targets) == 1 and named_call:
        callee = self.eval_expr(node.value.func)
        if getattr(callee, "is_sparse_definition", False):
            state.target_name = target.id
            value = self.eval_expr(node.value)
            self.var_table.add(target.id, value, allow_shadowing=False)
            return
    for each in node.targets:
        if state is not None and isinstance(each, doc.Subscript) and isinstance(self, SparseParser):
            _CheckIndices(self).check(each)
    _visit_tirx_assign(self, node)


@_visitor("tvm_declare_function")
def _declare_function(self: Parser, node: doc.FunctionDef) -> tvm.ir.GlobalVar:
    return I.decl_function(node.name, _placeholder())


_visit_module = dispatch.get(token="ir", type_name="ClassDef")


@dispatch.register(token="ir", type_name="ClassDef")
def _visit_class_def(self: Parser, node: doc.ClassDef) -> None:
    _visit_module(self, node)
    _place_functions(self, IRBuilder.current().get())


def _placeholder() -> tirx.PrimFunc:
    """What stands for a sparse function while TVM builds a module: it defines only its own kinds."""
    return tirx.PrimFunc([], tirx.Evaluate(0))


def _place_functions(parser: Parser, module: IRModule) -> None:
    for name, func in getattr(parser, "sparse_functions", {}).items():
        module.update_func(module.get_global_var(name), func)


@_visitor("FunctionDef")
def _visit_function_def(self: Parser, node: doc.FunctionDef) -> None:
    private = tirx_parser.find_decorator_annotation(node, "private", default=False)
    checked = tirx_parser.find_decorator_annotation(node, "check_well_formed", default=True)
    supplied = self.function_annotations
    self.function_annotations = None
    # The frames of the inner builder are read, not closed: closing one would make a PrimFunc.
    with FunctionState(node.name) as state, IRBuilder(), self.var_table.with_frame():
        frame = T.prim_func(is_private=private)
        frame.__enter__()
        T.func_name(node.name)
        with self.with_dispatch_token(_TOKEN):
            params = [(arg.arg, _declare_param(self, arg)) for arg in node.args.args]
            for statement in node.body:
                state.span = self.diag.source.to_span(statement)
                self.visit(statement)
        attrs = {k: v for k, v in (frame.attrs or {}).items() if k != "sparse_tir_level"}
        func = _finish(state, params, frame, attrs, None if private else node.name)
        func = _locate(func, self.diag.source.to_span(node))
    self.function_annotations = supplied
    if checked:
        try:
            verify(func)
        except SparseProgramError as err:
            span = getattr(err, "span", None)
            if span is None or not isinstance(self, SparseParser):
                self.report_error(_node_at(node, span, self), err)
            located = SparseProgramError(f"{err}\n    {self.quote(_node_at(node, span, self))}")
            located.located = True
            raise located from None
    if not self._get_current_class_context():
        _declare_function(self, node)
    I.def_function(node.name, _placeholder())
    self.__dict__.setdefault("sparse_functions", {})[node.name] = func


def _declare_param(self: Parser, arg: doc.arg) -> tvm.ir.Var:
    if arg.annotation is None:
        self.report_error(arg, f"parameter {arg.arg}: expected a type annotation, found none")
    annotation = self.eval_expr(arg.annotation)
    if callable(annotation) and not isinstance(annotation, tvm.ir.Expr):
        annotation = annotation()
    param = T.arg(arg.arg, annotation)
    self.var_table.add(arg.arg, param)
    return param


def _finish(state, params, frame, attrs, symbol) -> SparseFunc:
    """Put together the function from what the frames collected."""
    matched = dict(state.matched)
    for handle, buffer in dict(frame.buffer_map or {}).items():
        matched.setdefault(handle, buffer)
    current = dict(zip([name for name, _ in params], frame.args))
    final = []
    for name, param in params:
        var = matched.get(param, current.get(name, param))
        if not tirx.is_buffer_var(var) and "handle" in str(var.ty):
            raise SparseProgramError(
                f"function {state.name}: handle parameter {name} is never matched with a buffer "
                "or an axis"
            )
        final.append(var)
    body = [_convert_iterations(s, state) for s in frame.stmts]
    if symbol is not None:
        attrs.setdefault("global_symbol", symbol)
    return SparseFunc(
        params=final,
        axes=state.axes,
        buffers=state.buffers,
        temporaries=state.temporaries,
        body=body[0] if len(body) == 1 else tirx.SeqStmt(body) if body else tirx.Evaluate(0),
        arg_names=[name for name, _ in params],
        attrs=tvm.ir.make_node("ir.DictAttrs", **attrs),
    )


def _convert_iterations(stmt: tirx.Stmt, state: FunctionState) -> tirx.Stmt:
    """Turn marked blocks into sparse iterations."""

    def visit(realize, mutator):
        block = realize.block
        annotations = dict(block.annotations)
        if ITERATION_MARK not in annotations:
            return mutator.default_mutate(realize)
        scope = state.iterations[int(annotations.pop(ITERATION_MARK))]
        annotations.pop("tirx.script_parsing_detect_access", None)
        return SparseIteration(
            axes=scope.axes,
            kinds=scope.kinds,
            iter_vars=scope.iter_vars,
            body=mutator.mutate(block.body),
            init=mutator.mutate(block.init) if block.init is not None else None,
            name=scope.name,
            annotations=annotations,
            span=block.span or scope.span,
        )

    return tvm_ffi.structural_mutate(stmt, [(SBlockRealize, visit)])


def _locate(func: SparseFunc, span) -> SparseFunc:
    return SparseFunc(
        params=func.params,
        axes=func.axes,
        buffers=func.buffers,
        temporaries=func.temporaries,
        body=func.body,
        arg_names=func.arg_names,
        attrs=func.attrs,
        span=span,
    )


def _node_at(node: doc.AST, span, self: Parser) -> doc.AST:
    """Return the statement of a function that a span points into."""
    if span is None:
        return node
    line = span.line - self.diag.source.start_line + 1
    found = node
    pending = list(node.body)
    while pending:
        statement = pending.pop()
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            found = statement
            pending = list(getattr(statement, "body", []))
    return found
