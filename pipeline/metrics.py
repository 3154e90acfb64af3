"""What every process counts; served on METRICS_PORT (and `/metrics` of the web process)."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

ACCEPTED = Counter("holdfast_accepted_total", "Attachments answered with 202.", ["pipeline", "source"])
REFUSED = Counter("holdfast_refused_total", "Files refused at the door, by code.", ["code"])
RELAYED = Counter("holdfast_relayed_total", "Outbox rows handed to the broker, by its receipt.", ["receipt"])
BROKER_BLOCKED = Gauge(
    "holdfast_broker_blocked",
    "1 while the broker blocks publishing (an alarm); told by who publishes.",
    ["role"],
    multiprocess_mode="max",
)
BROKER_UP = Gauge(
    "holdfast_broker_up",
    "1 while publishing to the broker works; told by who publishes.",
    ["role"],
    multiprocess_mode="min",
)
DEAD_LETTERS = Gauge(
    "holdfast_dead_letters",
    "Messages in a dead-letter queue; absent until the broker was asked, then the last that it said.",
    ["queue"],
    multiprocess_mode="livemostrecent",
)
OUTCOMES = Counter("holdfast_attempts_total", "Attempts by how they ended.", ["pipeline", "outcome"])
UNCLAIMED = Counter("holdfast_unclaimed_total", "Messages that entitled to no work, by reason.", ["reason"])
ATTEMPT_SECONDS = Histogram(
    "holdfast_attempt_seconds",
    "Wall time of an attempt from claim to its end.",
    ["pipeline"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
REPLIES_UNDELIVERED = Counter(
    "holdfast_replies_undelivered_total",
    "Answers that did not reach who sent a file by Telegram, by reason.",
    ["reason"],
)
FETCHES = Counter("holdfast_telegram_fetches_total", "Tries to fetch a Telegram message's file.", ["outcome"])
RECOVERED = Counter("holdfast_recovered_total", "Jobs and fetches taken back from an expired lease.")
REDISPATCHED = Counter("holdfast_redispatched_total", "Stranded jobs whose message was sent again.")
SWEPT = Counter("holdfast_swept_total", "Objects and rows removed by retention.", ["kind"])
