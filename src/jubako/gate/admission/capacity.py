"""How many sequences may run at once, found from the engine's own steps.

A step takes about `base + each * n + prompt * p` seconds: n sequences, p prompt tokens computed in it. The three are
estimated from every step, by least squares that forgets; the limit is the largest n whose mean step, the observed share
of prompt tokens included, is no longer than the time per output token that is to hold. Knows nothing of requests.
"""

from __future__ import annotations

import math

from jubako.vocabulary import Step

FORGETTING = 0.99
"""Weight of a step one step later: about a hundred steps are remembered."""
LEVEL_GAIN = 0.1
"""Share of a step's deviation by which all that is remembered is scaled: tens of steps follow a change of speed."""
OUTLIER = math.log(3.0)
"""A step is believed up to three times its prediction, either way: a pause of the machine is no change of it."""
RIDGE = 1e-3
"""Pull towards the last estimate; it decides only where the data do not."""
NOTHING = 1e-9
"""What of a sum that forgets says nothing any more: below it, its quotients would be noise."""
MIX_FORGETTING = 0.995
SMOOTHING = 0.1
"""Share of a step's answer in the number that holds the pace: its noise is not passed on."""
STEADINESS = 0.75
"""The limit moves when that number is further from it than this: a request more or less is no news."""
LEAST = 2
"""Sequences that run however slow a step is: beside a single one, whoever comes would wait for its whole reply."""
READY_STEPS = 3
PROOF_STEPS = 3
"""Steps at a number of sequences before twice as many may be tried."""
PROOF_FORGETTING = 0.999
UNKNOWN_PROMPT_WEIGHT = 0.25
LEAST_PROMPT_WEIGHT = 0.05

Vector = tuple[float, float, float]


class StepModel:
    """Seconds of a step as a function of sequences and prompt tokens; no coefficient is ever negative.

    Two estimators share one state. A deviation scales all that is remembered, which follows a machine that became
    slower or faster, and corrects a model of the wrong shape at the point of work. Least squares over the remembered
    steps finds the shape. Where the steps say nothing, as when n never changes, the last estimate stands.
    """

    def __init__(self) -> None:
        self.coefficients: Vector = (0.0, 0.0, 0.0)
        self.steps = 0
        self._products = [[0.0] * 3 for _ in range(3)]
        self._targets = [0.0] * 3
        self._deviations: Vector = (0.0, 0.0, 0.0)

    @property
    def ready(self) -> bool:
        """Whether enough was seen to predict from."""
        return self.steps >= READY_STEPS

    def predict(self, sequences: float, prompt_tokens: float) -> float:
        """Seconds of such a step."""
        base, each, prompt = self.coefficients
        return base + each * sequences + prompt * prompt_tokens

    def observe(self, sequences: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from one step."""
        self.steps += 1
        predicted = self.predict(sequences, prompt_tokens)
        if predicted <= 0.0:
            self.coefficients = (seconds, 0.0, 0.0)
            predicted = seconds
        deviation = min(max(math.log(seconds / predicted), -OUTLIER), OUTLIER)
        self._deviations = (self._deviations[1], self._deviations[2], deviation)
        # Prompt tokens say little about the speed of the rest: a step full of them moves the level less.
        decoding = 1.0 - self.coefficients[2] * prompt_tokens / predicted
        # The middle of three: a single pause of the machine moves nothing.
        self._scale(math.exp(LEVEL_GAIN * max(decoding, 0.0) * sorted(self._deviations)[1]))
        self._remember((1.0, float(sequences), float(prompt_tokens)), predicted * math.exp(deviation), predicted**-2)
        self.coefficients = self._solve()

    def _scale(self, factor: float) -> None:
        base, each, prompt = self.coefficients
        self.coefficients = (base * factor, each * factor, prompt * factor)
        # A step weighs by its relative error, so weights follow: else steps that seemed short outweigh all others.
        weight = factor**-2
        self._products = [[product * weight for product in row] for row in self._products]
        self._targets = [target / factor for target in self._targets]

    def _remember(self, features: Vector, seconds: float, weight: float) -> None:
        for row, feature in zip(self._products, features, strict=True):
            for column in range(3):
                row[column] = FORGETTING * row[column] + weight * feature * features[column]
        self._targets = [
            FORGETTING * target + weight * feature * seconds
            for target, feature in zip(self._targets, features, strict=True)
        ]

    def _solve(self) -> Vector:
        """Least squares with no negative coefficient: the most negative becomes zero, and the rest are solved again."""
        free = [index for index in range(3) if self._products[index][index] > NOTHING]
        kept = {index: self.coefficients[index] for index in range(3) if index not in free}
        while free:
            solved = self._solve_for(free)
            worst = min(free, key=solved.__getitem__)
            if solved[worst] >= 0.0:
                kept |= solved
                break
            kept[worst] = 0.0
            free.remove(worst)
        return kept[0], kept[1], kept[2]

    def _solve_for(self, free: list[int]) -> dict[int, float]:
        """Gaussian elimination over the chosen coefficients, pulled a little towards where they were."""
        rows = []
        for row in free:
            pull = RIDGE * self._products[row][row]
            values = [self._products[row][column] + (pull if row == column else 0.0) for column in free]
            rows.append([*values, self._targets[row] + pull * self.coefficients[row]])
        size = len(free)
        for pivot in range(size):
            for row in range(pivot + 1, size):
                factor = rows[row][pivot] / rows[pivot][pivot]
                for column in range(pivot, size + 1):
                    rows[row][column] -= factor * rows[pivot][column]
        found = [0.0] * size
        for row in reversed(range(size)):
            known = sum(rows[row][column] * found[column] for column in range(row + 1, size))
            found[row] = (rows[row][size] - known) / rows[row][row]
        return dict(zip(free, found, strict=True))


class Capacity:
    """The running limit: from `LEAST` to `ceiling`, and never more than double what was seen at work."""

    def __init__(self, *, target_seconds: float, ceiling: int) -> None:
        self.ceiling = max(1, ceiling)
        self.limit = self._least = min(LEAST, self.ceiling)
        """Sequences that may run now."""
        self.prospect = self.ceiling
        """Sequences that hold the pace by what is known, tried or not: what a forecast may count on."""
        self._target_seconds = target_seconds
        self._model = StepModel()
        self._prompt_tokens = 0.0
        self._generated_tokens = 0.0
        self._proven = 1.0
        self._smooth = float(self.ceiling)
        self._above: list[int] = []

    def observe(self, step: Step) -> None:
        """Learn from a step; one after an idle gap has no duration and teaches only what was at work."""
        if step.running <= 0:
            return
        self._prompt_tokens = MIX_FORGETTING * self._prompt_tokens + step.prompt_tokens
        self._generated_tokens = MIX_FORGETTING * self._generated_tokens + step.generated_tokens
        self._prove(step.running)
        if step.seconds > 0.0 and math.isfinite(step.seconds):
            self._model.observe(step.running, step.prompt_tokens, step.seconds)
            self._find()
        self.limit = max(self._least, min(self.prospect, int(2 * self._proven)))

    def step_seconds(self, sequences: float) -> float:
        """Mean seconds of a step with so many sequences, prompts of the observed mix included."""
        if not self._model.ready:
            return self._target_seconds
        return self._model.predict(sequences, sequences * self._mix)

    def decode_seconds(self, sequences: float) -> float:
        """Seconds of a step with so many sequences that computes no prompt."""
        if not self._model.ready:
            return self._target_seconds
        return self._model.predict(sequences, 0.0)

    @property
    def prompt_seconds(self) -> float:
        """What computing one prompt token adds to a step."""
        return self._model.coefficients[2]

    @property
    def prompt_weight(self) -> float:
        """What a prompt token costs the engine, beside an output token's 1; never more than that."""
        base, each, prompt = self._model.coefficients
        output = each + base / max(1, self.limit)
        if prompt <= 0.0 or output <= 0.0:
            return UNKNOWN_PROMPT_WEIGHT
        return min(max(prompt / output, LEAST_PROMPT_WEIGHT), 1.0)

    @property
    def _mix(self) -> float:
        """Prompt tokens computed for each token generated. Every sequence generates one a step."""
        return self._prompt_tokens / max(1.0, self._generated_tokens)

    def _prove(self, running: int) -> None:
        """Raise what was seen at work after some steps in a row above it; forget it slowly where it is not used."""
        if running <= self._proven:
            self._above.clear()
            self._proven = max(float(running), 1.0, self._proven * PROOF_FORGETTING)
            return
        self._above.append(running)
        if len(self._above) == PROOF_STEPS:
            self._proven = float(min(self._above))
            self._above.clear()

    def _find(self) -> None:
        base, each, prompt = self._model.coefficients
        slope = each + prompt * self._mix
        room = self._target_seconds - base
        if not self._model.ready or room >= slope * self.ceiling:
            found = float(self.ceiling)
        else:
            found = max(1.0, room / slope) if slope > 0.0 else 1.0
        # In proportion, not in number: halving takes as long as doubling.
        self._smooth *= (found / self._smooth) ** SMOOTHING
        if not self.prospect - STEADINESS + 0.5 <= self._smooth < self.prospect + STEADINESS + 0.5:
            self.prospect = min(self.ceiling, max(self._least, int(self._smooth)))
