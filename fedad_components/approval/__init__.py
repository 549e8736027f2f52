"""A site's own yes to a job before it runs: what it received, the digest of it, and who decided. Needs no FLARE."""
