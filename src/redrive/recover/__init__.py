"""Level two: dead letters are sent back, within minutes to days, by services that run beside each other.

One file per service: `worker` sends letters back when their strategy says so, `rescuer` ends leases that ran out,
`breaker` holds back what would only die again, `retention` lets go of what is old. `health` measures, and `service` is
the contract that all of them keep.
"""
