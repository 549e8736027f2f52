"""`fedad privacy`: plan an experiment's guarantee, look at a site's ledger, audit the mechanism."""
