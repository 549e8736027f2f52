"""``fedad demo``: a federation of four hospitals on one computer, from provisioning to a report."""
