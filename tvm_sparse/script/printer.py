"""Print stage-I functions as TVMScript that parses back to structurally equal functions.

TVM's printer writes everything that is stock TIR. A surrogate ``PrimFunc`` stands for the sparse
function: iterations become blocks, declarations become calls with telling names; what TVM prints for it
is parsed with :mod:`ast`, and those blocks and calls are replaced by the dialect's own syntax.
"""

from __future__ import annotations

import ast

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule, Range, TensorLoad, Var
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx import IterVar

from ..ir import AttachedAxis, Axis, FusedAxis, MergedAxis, SparseFunc, SparseIteration

__all__ = ["print_function", "print_module"]

_DECLARE = "tvm_sparse.declare."
_ITERATION = "tvm_sparse.sp_iter"


def print_function(func: SparseFunc) -> str:
    """Return the text of one function.

    Parameters
    ----------
    func : SparseFunc
        The function.

    Returns
    -------
    str
        TVMScript; :func:`tvm_sparse.script.from_source` reads it back.
    """
    return f"# from tvm.script import sparse as S, tirx as T\n\n{ast.unparse(_definition(func))}"


def print_module(module: IRModule) -> str:
    """Return the text of a module that may hold sparse functions beside stock ones."""
    stock = {v: f for v, f in module.functions.items() if not isinstance(f, SparseFunc)}
    text = tvm.IRModule(stock, attrs=module.attrs).script()
    tree = ast.parse(text)
    (class_def,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    body = [node for node in class_def.body if not isinstance(node, ast.Pass)]
    for var, func in module.functions.items():
        if isinstance(func, SparseFunc):
            definition = _definition(func)
            definition.name = var.name_hint
            body.append(definition)
    class_def.body = body or [ast.Pass()]
    header = "# from tvm.script import ir as I, sparse as S, tirx as T\n\n"
    return header + ast.unparse(ast.fix_missing_locations(tree))


def _definition(func: SparseFunc) -> ast.FunctionDef:
    names = _unique_names(func)
    surrogate = _Surrogate(func, names).build()
    text = surrogate.script(verbose_expr=False)
    tree = ast.parse(text)
    (definition,) = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return _Rewriter(func, names).rewrite(definition)


def _unique_names(func: SparseFunc) -> dict[Axis | Var, str]:
    """Names for axes and parameters that clash with nothing else in the function.

    Handles keep the names of the arguments, by which a kernel is called.
    """
    taken = {name for param, name in zip(func.params, func.arg_names) if tirx.is_buffer_var(param)}
    reserved = {"S", "T", "I"}

    def fresh(name: str) -> str:
        base = "".join(ch if ch.isalnum() or ch == "_" else "_" for ch in name) or "x"
        candidate, k = base, 0
        while candidate in taken or candidate in reserved - {base if base == "I" else ""}:
            k += 1
            candidate = f"{base}_{k}"
        taken.add(candidate)
        return candidate

    names: dict[Axis | Var, str] = {}
    for param in func.params:
        if not tirx.is_buffer_var(param):
            names[param] = fresh(param.name)
    for buffer in [*func.buffers, *func.temporaries]:
        names[buffer.buffer] = fresh(buffer.name)
    for param in func.params:
        if param not in names:
            names[param] = fresh(param.name)
    for axis in func.axes:
        names[axis] = fresh(axis.name)
    return names


class _Surrogate:
    """The stock function that TVM's printer is given."""

    def __init__(self, func: SparseFunc, names: dict) -> None:
        self.func = func
        self.names = names
        self.iterations: list[SparseIteration] = []

    def build(self) -> tirx.PrimFunc:
        func, names = self.func, self.names
        renamed: dict[Var, Var] = {}
        for param in func.params:
            if not tirx.is_buffer_var(param):
                renamed[param] = Var(names[param], str(param.ty.dtype))
        swap = lambda node: tvm_ffi.structural_map(  # noqa: E731
            node, [(Var, lambda v: renamed.get(v, v))]
        )
        for var in [*func.params, *(t.buffer for t in func.temporaries)]:
            if tirx.is_buffer_var(var):
                ty = var.ty
                shape = [swap(size) for size in ty.shape]
                if _is_scalar(shape):
                    shape = [tirx.const(2, "int32")]  # TVM prints one element without its index
                renamed[var] = tirx.decl_buffer(
                    shape,
                    str(ty.dtype),
                    names[var],
                    scope=ty.storage_scope,
                    data_alignment=ty.data_alignment,
                )
        declarations = [swap(self._axis(axis)) for axis in func.axes]
        for buffer in func.buffers:
            declarations.append(swap(self._buffer("match_sparse_buffer", buffer)))
        for buffer in func.temporaries:
            declarations.append(swap(self._buffer("alloc_sparse_buffer", buffer)))
        body = tvm_ffi.structural_mutate(func.body, [(SparseIteration, self._block)])
        body = tvm_ffi.structural_map(body, [(Var, lambda v: renamed.get(v, v))])
        params = [renamed[p] for p in func.params]
        params += [renamed[t.buffer] for t in func.temporaries]
        attrs = {str(k): v for k, v in dict(func.attrs or {}).items() if k != "global_symbol"}
        prim = tirx.PrimFunc(params, tirx.SeqStmt([*declarations, body]))
        prim = prim.with_attr({**attrs, "s_tir": True, "global_symbol": func.name})
        return prim

    def _axis(self, axis: Axis) -> tirx.Stmt:
        args = [self.names[axis], axis.dtype]
        if axis.kind == "dense_fixed":
            args += [axis.length]
        elif axis.kind == "dense_variable":
            args += [self.names[axis.parent], self.names[axis.indptr], axis.length, axis.nnz]
        elif axis.kind == "sparse_output":
            args += [self.names[axis.parent], axis.length]
        elif axis.kind == "sparse_fixed":
            args += [
                self.names[axis.parent],
                self.names[axis.indices],
                int(axis.sorted),
                int(axis.unique),
                int(axis.distinct),
                axis.length,
                axis.nnz_cols,
            ]
        else:
            args += [
                self.names[axis.parent],
                self.names[axis.indptr],
                self.names[axis.indices],
                int(axis.sorted),
                int(axis.unique),
                axis.length,
                axis.nnz,
            ]
        return _call(_DECLARE + axis.kind, args)

    def _buffer(self, what: str, buffer) -> tirx.Stmt:
        axes = [self.names[a] for a in buffer.axes]
        scope = buffer.buffer.ty.storage_scope
        args = [self.names[buffer.buffer], buffer.dtype, scope, ",".join(axes), buffer.default]
        return _call(_DECLARE + what, args)

    def _block(self, node: SparseIteration, mutator) -> tirx.Stmt:
        body = mutator.mutate(node.body)
        init = mutator.mutate(node.init) if node.init is not None else None
        iter_vars = []
        for var in node.iter_vars:
            dtype = str(var.ty.dtype)
            domain = Range.from_min_extent(tirx.const(0, dtype), tirx.const(1, dtype))
            iter_vars.append(IterVar(domain, var, IterVar.DataPar))
        axes = [self._loop_axis(axis) for axis in node.axes]
        mark = {_ITERATION: ";".join([node.kinds, node.name, *axes])}
        block = SBlock(
            iter_vars, [], [], "sp_iter", body, init, annotations={**node.annotations, **mark}
        )
        values = [tirx.const(0, str(v.ty.dtype)) for v in node.iter_vars]
        return SBlockRealize(values, True, block)

    def _loop_axis(self, axis: Axis) -> str:
        if isinstance(axis, FusedAxis):
            return f"S.fuse({', '.join(self.names[m] for m in axis.members)})"
        if isinstance(axis, MergedAxis):
            return f"S.{axis.kind}({', '.join(self._loop_axis(m) for m in axis.members)})"
        if isinstance(axis, AttachedAxis):
            return f"S.attach({self.names[axis.base]}, {self._loop_axis(axis.parent)})"
        return self.names[axis]


def _is_scalar(shape: list) -> bool:
    return len(shape) == 1 and isinstance(shape[0], tirx.IntImm) and int(shape[0].value) == 1


def _call(name: str, args: list) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("int32", name, *args))


class _Rewriter(ast.NodeTransformer):
    """Turns the printed surrogate into the dialect."""

    def __init__(self, func: SparseFunc, names: dict) -> None:
        self.func = func
        self.names = names
        #: Buffers that the body reads; index arrays among them need a name of their own.
        self._loaded: set[Var] = set()
        tvm_ffi.structural_walk(
            func.body, [(TensorLoad, lambda load: self._loaded.add(load.source))]
        )
        #: Handle parameter by the name of the buffer it is matched with.
        self._handles: dict[str, str] = {}
        for param, name in zip(func.params, func.arg_names):
            self._handles[names[param]] = name

    def rewrite(self, definition: ast.FunctionDef) -> ast.FunctionDef:
        func, names = self.func, self.names
        body = []
        for stmt in definition.body:
            rewritten = self.visit(stmt)
            if rewritten is not None:
                body.append(rewritten)
        plain = [
            self._plain_buffer(p)
            for p in func.params
            if tirx.is_buffer_var(p) and not self._is_declared(p)
        ]
        params = []
        for param in func.params:
            if tirx.is_buffer_var(param):
                params.append(ast.arg(self._handle(param), ast.parse("S.handle", mode="eval").body))
            else:
                kind = ast.parse(f"S.{param.ty.dtype}", mode="eval").body
                params.append(ast.arg(names[param], kind))
        attrs = [s for s in body if _is_call(s, "func_attr")]
        rest = [s for s in body if not _is_call(s, "func_attr")]
        private = "global_symbol" not in dict(func.attrs or {})
        decorator = "S.prim_func(private=True)" if private else "S.prim_func"
        result = ast.FunctionDef(
            name=func.name,
            args=ast.arguments([], params, None, [], [], None, []),
            body=[*attrs, *plain, *rest] or [ast.Pass()],
            decorator_list=[ast.parse(decorator, mode="eval").body],
            returns=None,
            type_params=[],
        )
        return ast.fix_missing_locations(result)

    def _is_declared(self, param: Var) -> bool:
        if param in self.func.sparse_buffers:
            return True
        if param in self._loaded:
            return False
        return any(
            getattr(axis, what, None) is not None and getattr(axis, what).same_as(param)
            for axis in self.func.axes
            for what in ("indptr", "indices")
        )

    def _handle(self, param: Var) -> str:
        return self._handles[self.names[param]]

    def _array(self, name: str) -> str:
        """What an axis declaration calls an index array: a handle, or a buffer declared before."""
        loaded = {self.names[param] for param in self.func.params if param in self._loaded}
        return name if name in loaded else self._handles[name]

    def _plain_buffer(self, param: Var) -> ast.stmt:
        ty = param.ty
        shape = ", ".join(_size(size, self.names) for size in ty.shape)
        return _statement(
            f"{self.names[param]} = S.match_buffer({self._handle(param)}, ({shape},), "
            f"{str(ty.dtype)!r}, align={ty.data_alignment})"
        )

    # Declarations are printed as T.evaluate(T.call_extern("int32", "tvm_sparse.declare.<what>", ...)).
    def visit_Expr(self, node: ast.Expr):
        call = _extern_call(node)
        if call is not None:
            return self._declaration(*call)
        if _is_call(node, "func_attr"):
            printed = node.value.args[0]
            text = ", ".join(
                f"{ast.unparse(key)}: {ast.unparse(value)}"
                for key, value in zip(printed.keys, printed.values)
                if key.value not in ("s_tir", "global_symbol")
            )
            return _statement(f"S.func_attr({{{text}}})") if text else None
        return node

    def _declaration(self, what: str, args: list[ast.expr]) -> ast.stmt:
        text = [ast.unparse(a) for a in args]
        plain = [a.value if isinstance(a, ast.Constant) else None for a in args]
        name, dtype = plain[0], plain[1]
        if what == "dense_fixed":
            return _statement(f"{name} = S.dense_fixed({text[2]}, {dtype!r})")
        if what == "dense_variable":
            parent, indptr = plain[2], plain[3]
            return _statement(
                f"{name} = S.dense_variable({parent}, ({text[4]}, {text[5]}), {self._array(indptr)}, "
                f"{dtype!r})"
            )
        if what == "sparse_output":
            return _statement(f"{name} = S.sparse_output({plain[2]}, {text[3]}, {dtype!r})")
        if what == "sparse_fixed":
            flags = _flags(plain[4], plain[5]) + (", distinct=True" if plain[6] else "")
            return _statement(
                f"{name} = S.sparse_fixed({plain[2]}, ({text[7]}, {text[8]}), {self._array(plain[3])}, "
                f"{dtype!r}{flags})"
            )
        if what == "sparse_variable":
            flags = _flags(plain[5], plain[6])
            return _statement(
                f"{name} = S.sparse_variable({plain[2]}, ({text[7]}, {text[8]}), "
                f"({self._array(plain[3])}, {self._array(plain[4])}), {dtype!r}{flags})"
            )
        scope, axes, default = plain[2], list(filter(None, plain[3].split(","))), text[4]
        axes_text = f"({', '.join(axes)},)" if len(axes) == 1 else f"({', '.join(axes)})"
        if what == "match_sparse_buffer":
            return _statement(
                f"{name} = S.match_sparse_buffer({self._handles[name]}, {axes_text}, {dtype!r}, "
                f"default={default})"
            )
        return _statement(
            f"{name} = S.alloc_sparse_buffer({axes_text}, {dtype!r}, {scope!r}, default={default})"
        )

    def visit_With(self, node: ast.With):
        (item,) = node.items
        if not _is_call(ast.Expr(item.context_expr), "sblock"):
            return self.generic_visit(node)
        mark, annotations, variables, body = None, {}, [], []
        for stmt in node.body:
            if _is_call(stmt, "sblock_attr"):
                annotations = {
                    ast.literal_eval(k): v
                    for k, v in zip(stmt.value.args[0].keys, stmt.value.args[0].values)
                }
                mark = ast.literal_eval(annotations.pop(_ITERATION))
            elif _is_call(stmt, "reads") or _is_call(stmt, "writes"):
                continue
            elif isinstance(stmt, ast.Assign) and "T.axis." in ast.unparse(stmt.value):
                target = stmt.targets[0]
                targets = target.elts if isinstance(target, ast.Tuple) else [target]
                variables += [t.id for t in targets]
            else:
                body.append(self.visit(stmt))
        if mark is None:
            return self.generic_visit(node)
        kinds, name, *axes = mark.split(";")
        head = (
            f"with S.sp_iter([{', '.join(axes)}], {kinds!r}, {name!r}) as [{', '.join(variables)}]"
        )
        result = _statement(f"{head}:\n    pass")
        if annotations:
            text = ", ".join(f"{k!r}: {ast.unparse(v)}" for k, v in annotations.items())
            body.insert(0, _statement(f"S.sp_iter_attr({{{text}}})"))
        result.body = body
        return result


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def _flags(is_sorted: int, unique: int) -> str:
    text = "" if is_sorted else ", sorted=False"
    return text if unique else f"{text}, unique=False"


def _size(size, names: dict) -> str:
    from ..transform._layout import size_text  # noqa: PLC0415

    return size_text(size, names)


def _is_call(stmt: ast.stmt, name: str) -> bool:
    return (
        isinstance(stmt, ast.Expr)
        and isinstance(stmt.value, ast.Call)
        and isinstance(stmt.value.func, ast.Attribute)
        and stmt.value.func.attr == name
    )


def _extern_call(node: ast.Expr) -> tuple[str, list[ast.expr]] | None:
    """Return what a printed declaration declares, and its arguments."""
    call = node.value
    if _is_call(node, "evaluate"):
        call = call.args[0]
    if not (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "call_extern"
    ):
        return None
    constants = [a.value for a in call.args if isinstance(a, ast.Constant)]
    what = next((c for c in constants if isinstance(c, str) and c.startswith(_DECLARE)), None)
    if what is None:
        return None
    at = next(k for k, a in enumerate(call.args) if isinstance(a, ast.Constant) and a.value == what)
    return what.removeprefix(_DECLARE), list(call.args[at + 1 :])
