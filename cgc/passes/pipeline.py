"""Run passes by name."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from cgc.cirh.module import Verifier
from cgc.cirh.text import make_context
from cgc.errors import CompileError, InvalidModuleError, PipelineError
from cgc.lair.lower import LowerToLairPass
from cgc.lair.passes import LairCsePass, LairDcePass, LairFusePass
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.canonicalize import CanonicalizePass
from cgc.passes.constant_fold import ConstantFoldPass
from cgc.passes.fuse import FusePass
from cgc.passes.precision import PrecisionPass
from cgc.passes.redundancy import CsePass, DcePass

PASSES: dict[str, type[ModulePass]] = {
    pass_type.name: pass_type
    for pass_type in (
        CanonicalizePass,
        ConstantFoldPass,
        CsePass,
        DcePass,
        FusePass,
        PrecisionPass,
        LowerToLairPass,
        LairFusePass,
        LairCsePass,
        LairDcePass,
    )
}

# Passes that notify an observer of all rewrites. Removing an unused op is not a rewrite.
_NOTIFYING = (CanonicalizePass, ConstantFoldPass, CsePass, DcePass, FusePass)

# Environment variable: unless it is empty or 0, modules are verified before the passes and after each of
# them.
VERIFY_VARIABLE = "CGC_VERIFY"


def should_verify() -> bool:
    """Return True if the environment asks for verification."""
    return os.environ.get(VERIFY_VARIABLE, "") not in ("", "0")


def parse_passes(text: str) -> tuple[ModulePass, ...]:
    """Parse passes such as `canonicalize,constant-fold{max-elements=64},dce`; `default` is a pipeline.

    Raises:
        PipelineError: bad syntax, an unknown pass, or an option the pass does not have.
    """
    compact = re.sub(r"\s*,\s*", ",", text.strip())
    try:
        specs = tuple(parse_pipeline(compact))
    except ArgSpecParseError as error:
        raise PipelineError(
            f"cannot read the pipeline {text!r}; expected names with options, such as {DEFAULT_PIPELINE!r} "
            f"or 'constant-fold{{max-elements=64}}'\n{error}"
        ) from None
    passes: list[ModulePass] = []
    for spec in specs:
        if spec.name == "default" and not spec.parameters:
            passes += parse_passes(DEFAULT_PIPELINE)
        else:
            passes.append(_make_pass(spec))
    return tuple(passes)


def all_notify_watch(text: str) -> bool:
    """Return True if all passes of a pipeline notify an observer of their rewrites."""
    return all(isinstance(module_pass, _NOTIFYING) for module_pass in parse_passes(text))


def _make_pass(spec: ArgSpec) -> ModulePass:
    pass_type = PASSES.get(spec.name)
    if pass_type is None:
        close = get_close_matches(spec.name, PASSES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise PipelineError(f"unknown pass {spec.name!r}, expected one of {', '.join(PASSES)}{hint}")
    try:
        return pass_type.from_spec(spec)
    except (TypeError, ValueError) as error:
        raise PipelineError(f"bad options of the pass {spec.name!r}: {error}") from error


def run_pipeline(module: ModuleOp, text: str = DEFAULT_PIPELINE, verify: bool | None = None) -> None:
    """Apply passes to a valid module, in place.

    Args:
        module: the module.
        text: names and options of the passes, in order.
        verify: verify after every pass; a failure names the pass. By default the environment variable
            CGC_VERIFY decides: a debugging aid, which takes about as long as the passes.

    Raises:
        PipelineError: `text` is wrong.
        CompileError: a pass has left an invalid module behind (a defect of the pass).
    """
    if verify is None:
        verify = should_verify()
    context, verifier = make_context(), Verifier()
    for module_pass in parse_passes(text):
        module_pass.apply(context, module)
        if verify:
            try:
                verifier.verify(module)
            except InvalidModuleError as error:
                raise CompileError(f"the pass {module_pass} left an invalid module: {error}") from error
