-- The lane that a task came with has its requirements for as long as the task is kept. This tells whether one still names it, so
-- that the row of a lane goes with the last of them. Most tasks ask for nothing, and are not in it.
CREATE INDEX input_lane ON input_row (lane) WHERE lane <> 'any';
