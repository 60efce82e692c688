"""The process that prepares grammars before the engine does, so that one that is too costly costs nobody else.

It imports vLLM's own code for the decision and the preparation, and does with a grammar what the engine will do with
it. Every check runs in a fork of its own, within limits that the kernel holds: a fork that is killed costs milliseconds
to replace, an import costs seconds. It is run by path, imports nothing of Jubako, and writes only to its pipe: what
grammar libraries say of a caller's text goes nowhere.

Messages in both directions are a length of four bytes and a JSON object. The first one in is `Setting`'s fields, the
first one out `{"ready": true}`; then each grammar in is one verdict out. The end of the input ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import resource
import select
import signal
import struct
import sys
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER = struct.Struct("<I")
NICENESS = 10
STACK_BYTES = 4 << 20
"""Half of what a thread of the engine has: what fits here, fits there."""
WALKS = ("first", "last", "drawn")
WALK_STEPS = 24
STEP_SECONDS = 0.05
MEAN_STEP_SECONDS = 0.015
"""Ordinary grammars take 0.01 to 10 ms a token; each token of every neighbour waits as long."""
PARSE_SECONDS = 0.1
"""vLLM reads structural tags in the serving process too, on its event loop."""
KEPT_SHARE = 16
"""The engine keeps the prepared grammar of every request that runs: at most this part of the memory limit."""
REASON_CHARACTERS = 240
_PR_SET_PDEATHSIG = 1
_SOURCE_PLACE = re.compile(r"\[\d\d:\d\d:\d\d\] *|\S*/\S+\.(?:cc|h|cpp|py|rs):\d+:? *")


class TooCostly(Exception):
    """The grammar takes more than it may; the message says of what."""


class Unsupported(Exception):
    """The grammar is wrong or not supported; the message says why, as far as the library does."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What decides how the engine prepares a grammar, and what preparing one may take."""

    tokenizer: str
    tokenizer_mode: str
    tokenizer_revision: str | None
    trust_remote_code: bool
    vocabulary_size: int
    model_type: str
    backend: str
    disable_any_whitespace: bool
    disable_additional_properties: bool
    processor_seconds: float
    wall_seconds: float
    memory_bytes: int


class Examiner:
    """vLLM's decision and its backend, on the engine's tokenizer."""

    def __init__(self, setting: Setting) -> None:
        from vllm.tokenizers import get_tokenizer

        self._setting = setting
        self._tokenizer = get_tokenizer(
            setting.tokenizer,
            tokenizer_mode=setting.tokenizer_mode,
            revision=setting.tokenizer_revision,
            trust_remote_code=setting.trust_remote_code,
        )
        self._model_config = SimpleNamespace(
            is_diffusion=False, hf_config=SimpleNamespace(model_type=setting.model_type)
        )
        self._structured_outputs_config = SimpleNamespace(
            backend=setting.backend,
            disable_any_whitespace=setting.disable_any_whitespace,
            disable_additional_properties=setting.disable_additional_properties,
        )
        self._backend = self._make_backend()
        self._import_what_validation_imports()
        # Once, so that what is made at the first use is made before any fork.
        self.examine({"json": '{"type": "object"}'})

    def _make_backend(self) -> Any:
        """The backend that the engine has. `auto` is xgrammar there: vLLM keeps to the one of the first request."""
        engine_config = SimpleNamespace(
            structured_outputs_config=self._structured_outputs_config,
            model_config=self._model_config,
            speculative_config=None,
        )
        options: dict[str, Any] = {"tokenizer": self._tokenizer, "vocab_size": self._setting.vocabulary_size}
        if self._setting.backend in {"auto", "xgrammar"}:
            from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

            return XgrammarBackend(engine_config, **options)
        if self._setting.backend == "guidance":
            from vllm.v1.structured_output.backend_guidance import GuidanceBackend

            return GuidanceBackend(engine_config, **options)
        raise ValueError(f"structured outputs backend {self._setting.backend}: use auto, xgrammar or guidance")

    def _import_what_validation_imports(self) -> None:
        from vllm.v1.structured_output import backend_guidance, backend_lm_format_enforcer, backend_outlines

        for module, name in ((backend_guidance, "llguidance"), (backend_outlines, "oc")):
            with contextlib.suppress(ImportError):
                dir(getattr(module, name, None) or backend_lm_format_enforcer)

    def examine(self, fields: dict[str, Any]) -> None:
        """Do what vLLM will do with `fields`; raises `TooCostly` or `Unsupported`."""
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams
        from vllm.v1.structured_output.request import get_structured_output_key

        started = time.thread_time()
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**fields), max_tokens=1)
        params._validate_structured_outputs(self._model_config, self._structured_outputs_config, self._tokenizer)  # noqa: SLF001 - the very decision that is to be foreseen
        if time.thread_time() - started > PARSE_SECONDS:
            raise TooCostly("to read")
        kind, text = get_structured_output_key(params.structured_outputs)
        grammar = self._backend.compile_grammar(kind, text)
        kept = getattr(getattr(grammar, "ctx", None), "memory_size_bytes", 0)
        if kept > self._setting.memory_bytes // KEPT_SHARE:
            raise TooCostly("to keep in memory")
        matcher = getattr(grammar, "ll_matcher", None)
        if matcher is not None and matcher.is_error():
            raise Unsupported(matcher.get_error())
        for walk in WALKS:
            self._walk(grammar, walk)

    def _walk(self, grammar: Any, walk: str) -> None:
        """Generate some tokens, always the first that may come, the last, or one drawn."""
        import numpy as np

        grammar.reset()
        bitmask = self._backend.allocate_token_bitmask(1)
        random = np.random.default_rng(0)
        spent, steps = 0.0, 0
        while steps < WALK_STEPS and not grammar.is_terminated():
            started = time.thread_time()
            grammar.fill_bitmask(bitmask, 0)
            filled = time.thread_time()
            token = self._choose(bitmask[0].numpy(), walk, random)
            chosen = time.thread_time()
            if not grammar.accept_tokens("vetting", [token]):
                raise Unsupported("it allows a token that it then refuses")
            step = time.thread_time() - chosen + filled - started
            spent, steps = spent + step, steps + 1
            if step > STEP_SECONDS:
                raise TooCostly("for each token")
        if steps and spent / steps > MEAN_STEP_SECONDS:
            raise TooCostly("for each token")

    def _choose(self, bits: NDArray[Any], walk: str, random: Any) -> int:
        import numpy as np

        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        allowed = allowed[allowed < self._setting.vocabulary_size]
        if not allowed.size:
            raise Unsupported("no text can satisfy it")
        if walk == "first":
            return int(allowed[0])
        return int(allowed[-1] if walk == "last" else random.choice(allowed))


def verdict(examiner: Examiner, message: bytes) -> dict[str, Any]:
    """One grammar's verdict. Runs in the fork."""
    fields = json.loads(message)
    try:
        examiner.examine(fields)
    except TooCostly as error:
        return {"ok": False, "costly": True, "reason": str(error)}
    except (MemoryError, RecursionError):
        return {"ok": False, "costly": True, "reason": "to prepare"}
    except Exception as error:  # noqa: BLE001 - whatever these libraries raise, the engine would raise it as well
        text = Exception.__str__(_first_cause(error) if "structural_tag" in fields else error)
        if "bad_alloc" in text:
            return {"ok": False, "costly": True, "reason": "to prepare"}
        return {"ok": False, "costly": False, "reason": _plain(text)}
    return {"ok": True}


def _first_cause(error: BaseException) -> BaseException:
    """What the first backend said: vLLM's second one knows another kind of structural tags, and misses their keys."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _plain(text: str) -> str:
    """A library's message on one short line, without places in its source."""
    line = " ".join(_SOURCE_PLACE.sub("", text).split())
    line = "".join(character for character in line if character.isprintable())
    return line if len(line) <= REASON_CHARACTERS else line[:REASON_CHARACTERS] + "…"


def check_in_fork(examiner: Examiner, setting: Setting, message: bytes) -> dict[str, Any]:
    """The verdict of a fork within limits; its death is a verdict too."""
    reading, writing = os.pipe()
    started = time.monotonic()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _be_the_fork(examiner, setting, message, writing, parent)
    os.close(writing)
    found = b""
    late = False
    try:
        while True:
            left = setting.wall_seconds - (time.monotonic() - started)
            ready = left > 0 and select.select([reading], [], [], left)[0]
            if not ready:
                late = True
                break
            part = os.read(reading, 1 << 16)
            if not part:
                break
            found += part
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # not waited for yet, so the number is still its own
        _, status = os.waitpid(child, 0)
    if found and not late:
        result: dict[str, Any] = json.loads(found)
    elif late:
        # Little of the processor in all that time: the machine is busy, the grammar need not be to blame.
        result = {"ok": False, "late": True}
    else:
        result = {"ok": False, "costly": True, "reason": "to prepare", "signal": os.WTERMSIG(status)}
    return result


def _be_the_fork(examiner: Examiner, setting: Setting, message: bytes, writing: int, parent: int) -> None:
    try:
        gc.disable()
        _die_with(parent)
        data = _own_data_bytes() + setting.memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        # Time of the processor, of all threads together; its signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, setting.processor_seconds)
        threading.stack_size(STACK_BYTES)
        results: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: results.append(verdict(examiner, message)))
        thread.start()
        thread.join()
        os.write(writing, json.dumps(results[0]).encode())
    finally:
        os._exit(0)


def _own_data_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as lines:  # noqa: PTH123 - pathlib would read it whole
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(0)


def read(source: int) -> bytes | None:
    """One message, or None at the end."""
    header = _read_exactly(source, HEADER.size)
    return None if header is None else _read_exactly(source, HEADER.unpack(header)[0])


def _read_exactly(source: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(source, count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def write(target: int, message: dict[str, Any]) -> None:
    """One message; shorter than a pipe's buffer."""
    body = json.dumps(message).encode()
    os.write(target, HEADER.pack(len(body)) + body)


def main(parent: int) -> None:
    """Get ready, then give verdicts until the input ends."""
    source, target = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    _die_with(parent)
    os.nice(NICENESS)
    # Ctrl-C in a terminal reaches every process in front; the end of the input is what ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    first = read(source)
    if first is None:
        return
    setting = Setting(**json.loads(first))
    gc.disable()  # while it imports: a fifth of the time
    try:
        examiner = Examiner(setting)
    except Exception as error:  # noqa: BLE001 - said to the parent, which says it to the operator
        write(target, {"ready": False, "reason": f"{type(error).__name__}: {error}"[:2000]})
        return
    gc.collect()
    gc.freeze()
    gc.enable()
    write(target, {"ready": True})
    while (message := read(source)) is not None:
        write(target, check_in_fork(examiner, setting, message))


if __name__ == "__main__":
    main(int(sys.argv[1]))
