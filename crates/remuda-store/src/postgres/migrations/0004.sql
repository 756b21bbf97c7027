-- What the unfinished tasks of a tenant ask for: how many different lanes there are is counted here, and which are in use.
CREATE INDEX task_lanes ON remuda.task (tenant, lane) WHERE finished_at IS NULL;
