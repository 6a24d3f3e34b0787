"""The estimator in a run, for any engine: which prompts, which completions, the loss, and the state of all of it.

A step of a training loop::

    prompts = session.prompts()  # before anything is known of the step
    plan = session.plan(prompts, RolledOut(rewards=rewards, tokens_N=tokens_N))
    kept = plan.kept(0)  # only these are forwarded
    loss = session.loss(tokens, plan.weight_UN[0, kept], plan.sizes)  # weighted by one over the probabilities

``examples/without_trainer.py`` is a whole run.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dppo.costs import Spent, TokenCosts
from dppo.errors import CheckpointError, ConfigError, DPPOError
from dppo.files import sealed, unsealed
from dppo.methods import Method
from dppo.methods.from_settings import with_rollout_cost
from dppo.moment_samples import NO_OTHERS, MomentSamples, OtherTerms
from dppo.objective import AdvantageRule, Tokens
from dppo.rng import Streams, step_streams
from dppo.step.in_flight import InFlight, Requested
from dppo.step.loss import micro_batch_loss
from dppo.step.plan import ONCE, StepPlan, StepSizes, plan_step
from dppo.step.prompts import PromptSource
from dppo.step.records import Live, RolledOut, StepPrompts
from dppo.step.schedule import UpdateSchedule
from dppo.types import Block, Rewards


class Session:
    """One method in one run. All ranks make the same calls and get equal results.

    Args:
        method: objective and pruning.
        source: prompts of a dataset; None for a stream of data, whose prompts cannot be chosen.
        seed: of all draws of completions, >= 0.
        generations: G, completions of a prompt, or their mean where sizes follow history.
        max_tokens: longest completion allowed, for denominators that count it.
        passes: passes over one rollout, and the optimizer steps of each.
        rollout_cost: cost of a generated token over that of a trained one, >= 0; None to measure it.
    """

    def __init__(
        self,
        method: Method,
        source: PromptSource | None = None,
        *,
        seed: int,
        generations: int,
        max_tokens: int,
        passes: UpdateSchedule = ONCE,
        rollout_cost: float | None = None,
    ) -> None:
        self.method, self.source, self.seed = method, source, seed
        self.generations, self.max_tokens, self.passes = generations, max_tokens, passes
        self.number: int = 0
        """Rollouts that were planned: the key of the next draws, and the clock of the history."""
        self.samples: MomentSamples | None = None
        """Completions with a gradient of the last steps, from which a rate is chosen; None before the first."""
        self.others: OtherTerms = NO_OTHERS
        """Size of the gradients of the KL term and the entropy bonus in completions that were kept."""
        self.costs = TokenCosts()
        self.in_flight: InFlight | None = None
        """Prompts requested ahead of the update that trains on them, by ``InFlight.after_block``; None without any."""
        self._given_cost = rollout_cost

    def prompts(
        self, *, number: int | None = None, done: float = 0.0, multiple: int = 1, parts: int = 1
    ) -> StepPrompts:
        """Prompts of the next rollout, ``number`` if the engine counts them: see ``PromptSource.block``."""
        number = self.number if number is None else number
        more = {"generations": self.generations, "multiple": multiple, "parts": parts}
        return self._with_source("prompts").block(self.method, number, done=done, **more)

    def prompts_in_rounds(self, roll_out: Callable[[int, Block], Rewards], *, multiple: int = 1) -> StepPrompts:
        """Prompts of the next rollout, rolled out until enough groups count: see ``PromptSource.rounds``."""
        return self._with_source("prompts_in_rounds").rounds(self.method, self.number, roll_out, multiple=multiple)

    def request_instead(self, gone: Sequence[str], row_Q: Tensor, uid_Q: Sequence[str]) -> None:
        """Remember other prompts, (Q,) rows of the dataset, in place of some in flight that the engine has dropped."""
        others = self._with_source("request_instead").history.candidates(row_Q, self._flights.asked)
        self.in_flight = self._flights.after_replacing(gone, others, uid_Q)

    def returned(self, uids: Collection[str], clock: int) -> Requested:
        """Prompts of the next update, by the engine's names of the groups that it takes; ``clock`` as for ``plan``."""
        requested, self.in_flight = self._flights.after_update(uids)
        context = self._with_source("returned").context(self.method, requested.prompts.row_Q, clock)
        return replace(requested, prompts=replace(requested.prompts, context=context))

    @property
    def _flights(self) -> InFlight:
        if self.in_flight is None:
            advice = "Write session.in_flight = InFlight(prompts=16, generations=8)."
            raise ConfigError(f"no prompts are requested ahead. {advice}")
        return self.in_flight

    def plan(
        self,
        prompts: StepPrompts,
        rolled_out: RolledOut,
        *,
        number: int | None = None,
        clock: int | None = None,
        done: float = 0.0,
        advantages: AdvantageRule | None = None,
        live: Live | None = None,
        streams: Streams | None = None,
    ) -> StepPlan:
        """The draws and weights of a step, by ``plan_step``; the history of its prompts learns from the rollouts.

        ``number`` of the rollout and ``clock`` of the history are given if the engine counts them. ``advantages``
        replace the method's rule. ``streams`` of random numbers are for proofs; else ``seed`` and ``number`` give them.
        """
        number = self.number if number is None else number
        method = self.method if advantages is None else replace(self.method, advantages=advantages)
        known = replace(prompts, context=replace(prompts.context, samples=self.samples, others=self.others))
        streams = streams or step_streams(self.seed, number)
        of_run: dict[str, Any] = {"max_tokens": self.max_tokens, "passes": self.passes, "done": done}
        plan = plan_step(method, rolled_out, known, streams=streams, live=live, **of_run)
        self.samples = self.samples if plan.samples is None else plan.samples
        if self.source is not None:
            self.source.learn(plan, number if clock is None else clock)
        self.number = number + 1
        return plan

    def loss(self, tokens: Tokens, weight: Tensor, sizes: StepSizes, **terms: Tensor | None) -> Tensor:
        """() a micro-batch's part of the loss of its optimizer step: see ``micro_batch_loss``, also for ``terms``."""
        return micro_batch_loss(self.method, tokens, weight, sizes, **terms)

    def observe_terms(self, square: float, unit: float) -> dict[str, float]:
        """Remember sums of ``other_terms`` of an optimizer step, for later scores; return metrics of them."""
        self.others = self.others.after(square, unit)
        return {} if (advantage := self.others.advantage) is None else {"prune/other_terms": advantage}

    def observe_costs(self, spent: Spent, generated: float, trained: float) -> None:
        """Remember seconds and passes of a rollout, of so many completion tokens generated and trained on."""
        self._at_costs(self.costs.after(spent, generated, trained))

    def settle_costs(self) -> None:
        """Fix the cost of a generated token, as a checkpoint does: later choices depend on no clock."""
        self._at_costs(self.costs.settled())

    def _at_costs(self, costs: TokenCosts) -> None:
        self.costs = costs
        if self._given_cost is None and costs.rollout_cost is not None:
            self.method = with_rollout_cost(self.method, costs.rollout_cost)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the place in the stream of prompts, and of what is known of them."""
        return {} if self.source is None else self.source.metrics

    def messages(self) -> list[str]:
        """Sentences about the prompts for the user, each given once."""
        if self.source is None:
            return []
        found, self.source.messages = self.source.messages, []
        return found

    @property
    def visits(self) -> MomentSamples | None:
        """Visits of prompts with a history, from which a rate for prompts is chosen; None for a stream of data."""
        return None if self.source is None else self.source.visits

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the history of prompts into ``folder``; return the rest of the state as JSON values with a checksum."""
        state = {
            "number": self.number,
            "source": None if self.source is None else self.source.save(folder),
            "samples": None if self.samples is None else self.samples.saved(),
            "others": asdict(self.others),
            "costs": asdict(self.costs),
            "in_flight": self.in_flight and self.in_flight.saved(self._with_source("save").history.identities),
        }
        return sealed(state)

    def load(self, folder: Path, state: Mapping[str, Any], *, history: bool = True) -> None:
        """Go on from what ``save`` wrote and returned; without ``history`` that of the prompts is left out."""
        try:
            state = unsealed(state)
            samples, in_flight = state["samples"], state["in_flight"]
            if self.source is not None and state["source"] is not None:
                self.source.load(self.method, folder, state["source"], history=history)
            self.number, self.others = state["number"], OtherTerms(**state["others"])
            self.samples = None if samples is None else MomentSamples.of_saved(samples)
            self._at_costs(TokenCosts.of_saved(state["costs"]))
            if in_flight is not None and (in_flight["flights"] or self.in_flight is not None):
                self.in_flight = self._flights.resumed(in_flight, self._with_source("load").history.identities)
        except DPPOError:  # has its own message, and some are also a ValueError
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            which = f"the state of the session is damaged or of another version in {folder}"
            raise CheckpointError(f"{which} ({error}). Resume from an earlier checkpoint folder.") from error

    def _with_source(self, what: str) -> PromptSource:
        if self.source is None:
            why = f"session.{what} chooses among the rows of a dataset, and a stream of data has none to come back to"
            raise ConfigError(f"{why}. Make it with a PromptSource, or use dppo.step.whole_block(groups, completions).")
        return self.source
