"""What to do about a failure: pure functions, no I/O, no clock of their own.

`classify` says what an error is, `decide` what becomes of its delivery, `backoff` how long to wait between
tries, `strategy` when a dead letter is sent back, `breaker` whether it is better to try nothing for a while.
"""

from redrive.rules.backoff import Backoff, DelayList, Exponential, Fixed, parse_backoff
from redrive.rules.classify import Classification, Classifier, Step
from redrive.rules.config import rules_from_config, strategies_from_config
from redrive.rules.decide import (
    Complete,
    DeadLetterIt,
    Decision,
    Failed,
    GiveBack,
    ManualDeadLetter,
    ManualGiveBack,
    NotRun,
    Outcome,
    Reason,
    RunHandler,
    Succeeded,
    check_limit,
    decide,
)
from redrive.rules.durations import format_duration, parse_duration
from redrive.rules.report import failure_from_error, judged
from redrive.rules.retry_after import parse_retry_after
from redrive.rules.rule import (
    RETRYABLE,
    Condition,
    Rule,
    all_of,
    when,
    when_errno,
    when_pattern,
    when_status,
    when_text,
    when_type,
)
from redrive.rules.strategy import (
    STRATEGIES,
    Check,
    Exhausted,
    Health,
    Plan,
    Strategy,
    StrategyOptions,
    StrategyRule,
    after_attempt,
    choose,
    in_words,
    unmet_conditions,
)

__all__ = [
    "RETRYABLE",
    "STRATEGIES",
    "Backoff",
    "Check",
    "Classification",
    "Classifier",
    "Complete",
    "Condition",
    "DeadLetterIt",
    "Decision",
    "DelayList",
    "Exhausted",
    "Exponential",
    "Failed",
    "Fixed",
    "GiveBack",
    "Health",
    "ManualDeadLetter",
    "ManualGiveBack",
    "NotRun",
    "Outcome",
    "Plan",
    "Reason",
    "Rule",
    "RunHandler",
    "Step",
    "Strategy",
    "StrategyOptions",
    "StrategyRule",
    "Succeeded",
    "after_attempt",
    "all_of",
    "check_limit",
    "choose",
    "decide",
    "failure_from_error",
    "format_duration",
    "in_words",
    "judged",
    "parse_backoff",
    "parse_duration",
    "parse_retry_after",
    "rules_from_config",
    "strategies_from_config",
    "unmet_conditions",
    "when",
    "when_errno",
    "when_pattern",
    "when_status",
    "when_text",
    "when_type",
]  # fmt: skip
