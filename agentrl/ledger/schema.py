"""The tables of a run's ledger. A change of shape raises SCHEMA_VERSION; an older file is refused, not migrated.

Tables with blobs have a rowid: in one without, every look-up reads the whole rows it compares with, blobs included.
"""

SCHEMA_VERSION = 7

TABLES = """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- One row per group of episodes of one task. state: open, ready, batched, dropped.
CREATE TABLE groups (
  id TEXT PRIMARY KEY,
  seq INTEGER NOT NULL UNIQUE,          -- launch order; the task is a function of it and the seed
  task TEXT NOT NULL,
  state TEXT NOT NULL,
  reason TEXT,                          -- why dropped
  step INTEGER,                         -- the step whose batch it is in, or for which it was consumed
  opened_at REAL NOT NULL,
  closed_at REAL
) WITHOUT ROWID;
CREATE INDEX groups_by_step ON groups (step);
CREATE INDEX groups_by_state ON groups (state);

-- One row per attempt at a member. verdict is NULL while it runs.
CREATE TABLE episodes (
  id TEXT PRIMARY KEY,
  group_id TEXT NOT NULL REFERENCES groups (id),
  member INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  epoch INTEGER NOT NULL,               -- controller that ran it; a running one of an older epoch is lost
  version INTEGER,                      -- policy version that the engines served when it was launched
  started_at REAL NOT NULL,
  ended_at REAL,
  verdict TEXT,
  cause TEXT,
  reward REAL,
  num_turns INTEGER,
  num_tokens INTEGER,
  active_s REAL,
  oldest_version INTEGER,               -- of its sampled tokens
  newest_version INTEGER,
  evidence TEXT,                        -- JSON
  trajectory BLOB                       -- wire.Trajectory, only with a usable verdict; NULL again once pruned
);
CREATE INDEX episodes_by_group ON episodes (group_id);

CREATE TABLE turns (
  episode TEXT NOT NULL,
  turn INTEGER NOT NULL,
  began_at REAL NOT NULL,
  ended_at REAL NOT NULL,
  message TEXT NOT NULL,
  command TEXT,
  exit_code INTEGER,
  observation TEXT,
  generation_s REAL NOT NULL,
  tool_s REAL NOT NULL,
  num_sampled INTEGER NOT NULL,         -- tokens of the message
  num_prompt INTEGER NOT NULL,          -- tokens before the message: the prompt; 0 later, unless a sequence begins
  num_observed INTEGER NOT NULL,        -- tokens of the observation, with what the template adds
  segment BLOB NOT NULL,                -- wire.Segment; empty once the trajectory holds it
  timeout_s REAL,                       -- the command's limit
  result TEXT,                          -- JSON: what the command did, but for its output
  suspended_s REAL NOT NULL,            -- of the time between: generation stood still for the trainer
  PRIMARY KEY (episode, turn)
);

-- assigned: the batch is fixed. applied: the trainer has the new version on disk. published: the engines serve it.
CREATE TABLE steps (
  step INTEGER PRIMARY KEY,
  batch_id TEXT NOT NULL UNIQUE,
  assigned_at REAL NOT NULL,
  applied_at REAL,
  published_at REAL,
  time_to_batch_s REAL NOT NULL,
  reward_sampled REAL NOT NULL,         -- mean over every usable episode consumed for this step, trained or dropped
  weights_path TEXT,
  metrics TEXT                          -- JSON
);

CREATE TABLE evaluations (
  label TEXT NOT NULL,                  -- before, after
  version INTEGER NOT NULL,
  episode TEXT NOT NULL,
  task TEXT NOT NULL,
  verdict TEXT NOT NULL,
  reward REAL,
  PRIMARY KEY (label, episode)
) WITHOUT ROWID;

CREATE TABLE processes (
  pid INTEGER NOT NULL,
  start_ticks INTEGER NOT NULL,         -- field 22 of /proc/PID/stat: with the pid it names one process for ever
  role TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  started_at REAL NOT NULL,
  ended_at REAL,
  PRIMARY KEY (pid, start_ticks)
) WITHOUT ROWID;

-- Sandboxes that came up, and how long each start took; whoever it was for.
CREATE TABLE sandbox_starts (
  ended_at REAL NOT NULL,
  took_s REAL NOT NULL
);

-- What the GPUs' time went to: whole microseconds by lane (an engine, or the trainer), step and use.
CREATE TABLE gpu_time (
  lane TEXT NOT NULL,
  step INTEGER NOT NULL,
  use TEXT NOT NULL,
  num_gpus INTEGER NOT NULL,
  began_at REAL NOT NULL,               -- when the lane was first in that use for that step
  spent_us INTEGER NOT NULL,
  PRIMARY KEY (lane, step, use)
) WITHOUT ROWID;

-- What it took to make a version live; docs/metrics.md.
CREATE TABLE publications (
  version INTEGER PRIMARY KEY,
  method TEXT NOT NULL,
  latency_s REAL NOT NULL,
  downtime_s REAL NOT NULL,
  received_bytes INTEGER NOT NULL,
  engines INTEGER NOT NULL,
  probe_difference REAL
);

-- One row per decision about the swing engines; realised_s stays NULL where a later one took its place.
CREATE TABLE balance (
  id INTEGER PRIMARY KEY,
  step INTEGER NOT NULL,
  decided_at REAL NOT NULL,
  choice TEXT NOT NULL,
  reason TEXT NOT NULL,
  predicted_s REAL,
  alternative_s REAL,
  inputs TEXT NOT NULL,                 -- JSON
  realised_s REAL
);
"""
