"""The phases of a cycle, in their order: intake, expiry, match. Each works on the plan of the cycle."""
