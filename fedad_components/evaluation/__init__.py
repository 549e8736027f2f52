"""What an extractor is worth to others: frozen features and a linear probe. Imports no FLARE."""
